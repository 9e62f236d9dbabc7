"""OpInfo samples run through the lowering table and judged against torch."""
