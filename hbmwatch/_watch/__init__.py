"""When and how we listen: the decorator, the block and the stages."""
