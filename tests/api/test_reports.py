"""Public bug reports of services of this kind: for each the test of what is right, which names it."""

from tests.sources import TESTS, docstrings

#: Report -> the test that names it.
REPORTS = {
    "openlinker-project/openlinker#1916": "store/test_reports.py::test_a_late_writer_does_not_move_a_status_backwards",
    "webhookx-io/webhookx#183": "store/test_reports.py::test_a_late_writer_does_not_move_a_status_backwards",
    "APSL/django-yubin#72": "store/test_reports.py::test_a_hint_never_comes_before_its_record",
    "codalab/codabench#2420": "store/test_reports.py::test_a_hint_never_comes_before_its_record",
    "replicate/cog#2229": "api/test_deliveries.py::test_generation_does_not_notice_a_receiver_that_is_away",
    "replicate/cog#909": "workers/test_courier.py::test_a_receiver_that_is_away_costs_nothing_but_its_own_time",
    "replicate/replicate-javascript#195": "api/test_deliveries.py::test_a_redirect_is_a_failure_that_says_so",
    "replicate/replicate-javascript#321": "api/test_deliveries.py::test_the_log_tells_what_became_of_each_event",
    "replicate/replicate-javascript#341": "api/test_deliveries.py::test_the_log_tells_what_became_of_each_event",
    "fal-ai/fal-js#135": "api/test_create.py::test_what_is_accepted_is_used_and_nothing_else_is_accepted",
    "google/go-github#2706": "api/test_deliveries.py::test_events_carry_a_sequence_and_a_snapshot",
    "stripe/stripe-cli#418": "api/test_deliveries.py::test_events_carry_a_sequence_and_a_snapshot",
    "replicate/replicate-python#385": "api/test_create.py::test_a_wait_that_runs_out_is_202_with_the_real_status",
    "replicate/replicate-python#372": "api/test_create.py::test_a_wait_that_runs_out_is_202_with_the_real_status",
    "docker/model-runner#1041": "api/test_openai.py::test_a_caller_who_leaves_cancels_the_call_unless_it_has_a_key",
    "vllm-project/vllm-omni#1347": "api/test_reading.py::test_canceling_a_running_job_is_202_until_its_worker_lets_go",
    "LostRuins/koboldcpp#1531": "integration/test_service.py::test_a_deadline_stops_what_is_running",
    "Comfy-Org/ComfyUI#2566": "api/test_reading.py::test_canceling_a_queued_job_touches_no_other",
    "Comfy-Org/ComfyUI#9607": "api/test_reading.py::test_canceling_a_queued_job_touches_no_other",
    "invoke-ai/InvokeAI#6049": "api/test_reading.py::test_canceling_a_queued_job_touches_no_other",
    "rq/rq#1371": "api/test_reading.py::test_canceling_a_running_job_is_202_until_its_worker_lets_go",
    "rq/rq#684": "api/test_reading.py::test_canceling_a_running_job_is_202_until_its_worker_lets_go",
    "Comfy-Org/ComfyUI#2844": "integration/test_faults.py::test_redis_killed_again_and_again_loses_nothing",
    "Comfy-Org/ComfyUI#13512": "integration/test_faults.py::test_redis_killed_again_and_again_loses_nothing",
    "Comfy-Org/ComfyUI#859": "store/test_reports.py::test_the_job_that_crashes_its_worker_is_not_tried_for_ever",
    "celery/celery#5935": "store/test_reports.py::test_work_longer_than_any_timeout_is_done_once",
    "pretix/pretix#2058": "store/test_reports.py::test_work_longer_than_any_timeout_is_done_once",
    "learningequality/studio#3395": "store/test_reports.py::test_work_longer_than_any_timeout_is_done_once",
    "rq/rq#1571": "store/test_reports.py::test_a_machine_that_dies_loses_only_what_it_held",
    "SchweizerischeBundesbahnen/ch.sbb.polarion.extension.pdf-exporter#172": "api/test_reading.py::"
    "test_reads_are_repeatable_until_the_job_expires",
    "ConesaLab/paintomics4#155": "api/test_reading.py::test_reads_are_repeatable_until_the_job_expires",
    "vllm-project/vllm-omni#1080": "api/test_create.py::test_a_hundred_jobs_at_once_have_a_hundred_ids",
    "vllm-project/vllm-omni#2048": "api/test_create.py::test_a_hundred_jobs_at_once_have_a_hundred_ids",
    "sgl-project/sglang#14595": "api/test_create.py::test_every_n_has_its_images",
    "sgl-project/sglang#19346": "api/test_create.py::test_what_cannot_be_made_is_refused_before_it_waits",
    "AUTOMATIC1111/stable-diffusion-webui#7943": "api/test_reading.py::test_one_bad_image_leaves_the_others",
    "Comfy-Org/ComfyUI#9952": "api/test_openai.py::test_what_succeeded_is_given_out_beside_what_failed",
    "ai-dynamo/dynamo#12970": "workers/test_uploader.py::test_an_upload_is_repeated_alone_while_the_lease_is_kept",
    "CherryHQ/cherry-studio#20033": "api/test_create.py::test_200_concurrent_duplicates_make_one_job",
    "vercel/ai#20156": "api/test_openai.py::test_failed_pictures_are_an_error_once_and_never_an_empty_success",
    "boto/boto3#2392": "api/test_hygiene.py::test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "boto/boto3#3079": "api/test_hygiene.py::test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "minio/minio#5162": "store/test_reports.py::test_a_presigned_url_cannot_be_asked_to_live_longer_than_one_can",
    "aws/aws-cli#5464": "store/test_reports.py::test_a_presigned_url_cannot_be_asked_to_live_longer_than_one_can",
    "minio/minio#20964": "api/test_hygiene.py::test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "minio/minio-py#759": "api/test_hygiene.py::test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "minio/minio-js#1232": "api/test_hygiene.py::test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "boto/boto3#4392": "api/test_hygiene.py::test_prompts_in_any_script_reach_no_object_metadata",
    "boto/boto3#4435": "api/test_hygiene.py::test_prompts_in_any_script_reach_no_object_metadata",
    "langgenius/dify#35117": "api/test_hygiene.py::test_prompts_in_any_script_reach_no_object_metadata",
    "boto/boto3#478": "api/test_hygiene.py::test_prompts_in_any_script_reach_no_object_metadata",
    "minio/minio-py#764": "api/test_hygiene.py::test_prompts_in_any_script_reach_no_object_metadata",
    "apple/ml-stable-diffusion#48": "api/test_hygiene.py::"
    "test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "AUTOMATIC1111/stable-diffusion-webui#3791": "api/test_hygiene.py::"
    "test_presigned_urls_are_short_lived_and_for_the_public_endpoint",
    "Haidra-Org/AI-Horde#161": "api/test_create.py::test_what_cannot_be_made_is_refused_before_it_waits",
    "Haidra-Org/artbot#47": "api/test_create.py::test_every_n_has_its_images",
    "liwala/ay-framework#301": "webhooks/test_sender.py::test_a_name_that_changes_its_mind_is_not_followed",
    "gotempsh/temps#332": "api/test_deliveries.py::test_a_refused_address_is_told_in_the_log",
    "vstorm-co/full-stack-ai-agent-template#62": "api/test_deliveries.py::test_a_refused_address_is_told_in_the_log",
}


def test_every_report_is_named_by_its_test():
    unnamed = []
    for report, place in REPORTS.items():
        file, name = place.split("::")
        if report not in docstrings(TESTS / file).get(name, ""):
            unnamed.append((report, place))
    assert unnamed == []
