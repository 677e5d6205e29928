//! One finding of the doctor, and all of them.

use std::fmt;

use serde::Serialize;

use crate::machine::Unread;

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, but slower or with less certainty than it could.
    Warning,
    /// Baton will not work as configured.
    Failure,
    /// Has no meaning on this host.
    NotApplicable,
    /// The doctor could not read it; says nothing about the host.
    CouldNotRead,
}

impl Status {
    /// As it begins a line.
    const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "WARNING",
            Self::Failure => "FAILURE",
            Self::NotApplicable => "n/a",
            Self::CouldNotRead => "unread",
        }
    }
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What the check examines. Scripts may depend on it.
    pub check: &'static str,
    /// Of which device, port or interface; `None`: of the host.
    pub of: Option<String>,
    /// How it came out.
    pub status: Status,
    /// What the doctor found, or why it could not read it.
    pub seen: String,
    /// What should be there; `None` where nothing can be expected.
    pub expected: Option<String>,
    /// What to do; `None`: nothing.
    pub fix: Option<String>,
}

/// What a check expects, and what to do where it is not so.
#[derive(Clone, Debug)]
pub(super) struct Advice {
    pub(super) check: &'static str,
    pub(super) expected: String,
    pub(super) fix: String,
}

impl Advice {
    pub(super) fn new(
        check: &'static str,
        expected: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { check, expected: expected.into(), fix: fix.into() }
    }

    /// The finding. It has a fix only where there is something to do.
    pub(super) fn found(self, status: Status, seen: impl Into<String>) -> Check {
        let Self { check, expected, fix } = self;
        let fix = (status != Status::Ok && !fix.is_empty()).then_some(fix);
        Check { check, of: None, status, seen: seen.into(), expected: Some(expected), fix }
    }

    /// [`Status::Ok`] if `good`, else `bad`.
    pub(super) fn judged(self, good: bool, bad: Status, seen: impl Into<String>) -> Check {
        self.found(if good { Status::Ok } else { bad }, seen)
    }

    /// The doctor could not read it.
    pub(super) fn unread(self, why: impl Into<String>) -> Check {
        self.found(Status::CouldNotRead, why)
    }
}

impl Check {
    pub(super) fn not_applicable(check: &'static str, why: impl Into<String>) -> Self {
        let (status, seen) = (Status::NotApplicable, why.into());
        Self { check, of: None, status, seen, expected: None, fix: None }
    }

    pub(super) fn of(mut self, device: impl Into<String>) -> Self {
        self.of = Some(device.into());
        self
    }
}

/// The finding that `look` comes to, or that it could not be read.
pub(super) fn looked(advice: Advice, look: impl FnOnce(Advice) -> Result<Check, Unread>) -> Check {
    look(advice.clone()).unwrap_or_else(|unread| advice.unread(unread.to_string()))
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.of {
            Some(of) => format!("{} {of}", self.check),
            None => self.check.to_owned(),
        };
        write!(f, "{:<8} {name}: {}", self.status.label(), self.seen)?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        if let Some(fix) = &self.fix {
            write!(f, "\n{:<8}   fix: {fix}", "")?;
        }
        Ok(())
    }
}

/// All findings. Prints one per line and a last line that counts them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// In the order they were made.
    pub checks: Vec<Check>,
    /// How many came out well.
    pub ok: usize,
    /// How many could be better.
    pub warnings: usize,
    /// How many keep Baton from working as configured.
    pub failures: usize,
    /// How many have no meaning here.
    pub not_applicable: usize,
    /// How many the doctor could not read.
    pub could_not_read: usize,
}

impl Report {
    pub(super) fn of(checks: Vec<Check>) -> Self {
        let count = |status| checks.iter().filter(|check| check.status == status).count();
        Self {
            ok: count(Status::Ok),
            warnings: count(Status::Warning),
            failures: count(Status::Failure),
            not_applicable: count(Status::NotApplicable),
            could_not_read: count(Status::CouldNotRead),
            checks,
        }
    }

    /// True if nothing keeps Baton from working as configured.
    pub fn passed(&self) -> bool {
        self.failures == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            writeln!(f, "{check}")?;
        }
        write!(
            f,
            "ok: {}, warnings: {}, failures: {}; not applicable: {}, could not be read: {}",
            self.ok, self.warnings, self.failures, self.not_applicable, self.could_not_read
        )
    }
}
