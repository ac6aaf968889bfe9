"""Views of the record: terminal, JUnit. No pytest in here."""
