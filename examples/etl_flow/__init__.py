"""Extract, transform in parallel, load: a flow whose tasks hand results on."""
