//! Explicit-state models of the protocols. They are tests, in `models/tests`, and nothing is here that a program could use.
//!
//! `docs/models.md` says what each model abstracts, how far it goes and what it cannot say.
#![forbid(unsafe_code)]
