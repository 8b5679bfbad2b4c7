"""What several test files share: doubles of the seams, sample projects and ways to run things."""
