"""Pending pods: equal pods form one class, with their requests, preferences and claims."""
