"""Security rules on permissions and public access, checked for every resource."""
