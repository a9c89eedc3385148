"""What is known of one program: its graph, its loops, its buffers at the peak."""
