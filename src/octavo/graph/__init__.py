"""Operations, and the builder that models write them with."""
