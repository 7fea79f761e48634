"""What is seen of a stage and what becomes of its process. Nothing here touches a value that reaches an output."""
