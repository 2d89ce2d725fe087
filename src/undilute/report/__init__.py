"""What people look at: tables in the terminal, pictures, pages, files."""
