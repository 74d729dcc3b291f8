"""EC2NodeClass: AMIs, instance profiles, tags, and its status."""
