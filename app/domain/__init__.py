"""The pure core: jobs, images, states, messages and sizes. Standard library only, no I/O."""
