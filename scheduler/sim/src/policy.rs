//! The policies by the names the command line has for them.

use std::fmt;
use std::str::FromStr;

use baton_core::{Choice, Nanos, Policy};

/// A policy with its parameter, written `name` or `name:parameter`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PolicyName {
    /// The production scheduler.
    Production(Policy),
    /// SuperServe's: of the batches that the head's slack allows, the largest of the last bucket (§4.2).
    SlackFit {
        /// Of a bucket.
        width_ms: f64,
    },
    /// SuperServe's baseline that takes the most accurate variant first.
    MaxAccuracy,
    /// SuperServe's baseline that takes the largest batch first.
    MaxBatch,
    /// Symphony's deferral with the pruning its text describes.
    SymphonyText,
    /// Deferred until one more task would not fit; no βλ rule.
    Frontrun,
    /// Deferred until the head has waited for this fraction of the objective.
    Timeout {
        /// From 0 to 1.
        fraction: f64,
    },
    /// Clockwork's strategies.
    Clockwork {
        /// A slot gets another batch once it has less than this to execute.
        outstanding_ms: f64,
    },
    /// `baton`, which loads a model for each batch that is granted a slot without it.
    Naive,
    /// `baton`, with models where they were placed by their popularity.
    Pinned,
    /// Nexus' static partition.
    Nexus {
        /// Frontends that spread tasks, each on its own.
        frontends: u32,
    },
    /// Shepherd's online scheduler, Flex.
    Shepherd {
        /// A batch this many times larger preempts the one that executes; above 1.
        lambda: f64,
    },
}

impl PolicyName {
    /// How each is written.
    pub const SYNTAX: &str = "baton, symphony, symphony-text, eager, frontrun, timeout[:FRACTION], \
                              clockwork[:OUTSTANDING_MS], nexus[:FRONTENDS], shepherd[:LAMBDA], \
                              naive, pinned, slackfit[:WIDTH_MS], maxacc or maxbatch";

    /// How it chooses variants, if that is all that it does otherwise than `eager`.
    pub(crate) fn choice(self) -> Option<Choice> {
        match self {
            Self::SlackFit { width_ms } => {
                Some(Choice::SlackFit { width: Nanos::from_millis_f64(width_ms) })
            }
            Self::MaxAccuracy => Some(Choice::MaxAccuracy),
            Self::MaxBatch => Some(Choice::MaxBatch),
            _ => None,
        }
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = text.split_once(':').map_or((text, None), |(n, p)| (n, Some(p)));
        let number = |default: f64, max: f64| match parameter.map(str::parse::<f64>) {
            None => Ok(default),
            Some(Ok(value)) if (0.0..=max).contains(&value) => Ok(value),
            Some(_) => Err(format!("{name}: give a parameter from 0 to {max}")),
        };
        let plain = |policy| match parameter {
            None => Ok(policy),
            Some(_) => Err(format!("{name} has no parameter")),
        };
        if let Ok(policy) = name.parse() {
            return plain(Self::Production(policy));
        }
        match name {
            "symphony-text" => plain(Self::SymphonyText),
            "frontrun" => plain(Self::Frontrun),
            "timeout" => Ok(Self::Timeout { fraction: number(0.4, 1.0)? }),
            "slackfit" => match number(2.0, 1e3)? {
                width_ms if width_ms >= 0.001 => Ok(Self::SlackFit { width_ms }),
                _ => Err("slackfit: give a width of at least 0.001 ms".to_owned()),
            },
            "maxacc" => plain(Self::MaxAccuracy),
            "maxbatch" => plain(Self::MaxBatch),
            "naive" => plain(Self::Naive),
            "pinned" => plain(Self::Pinned),
            "clockwork" => Ok(Self::Clockwork { outstanding_ms: number(5.0, 1e3)? }),
            "nexus" => match number(1.0, 1e3)? {
                frontends if frontends >= 1.0 && frontends.fract() == 0.0 => {
                    Ok(Self::Nexus { frontends: frontends as u32 })
                }
                _ => Err("nexus: give a whole number of frontends".to_owned()),
            },
            "shepherd" => match number(3.03, 1e3)? {
                lambda if lambda > 1.0 => Ok(Self::Shepherd { lambda }),
                _ => Err("shepherd: give a factor above 1".to_owned()),
            },
            _ => Err(format!("give {}", Self::SYNTAX)),
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Production(policy) => policy.fmt(f),
            Self::SlackFit { width_ms } => write!(f, "slackfit:{width_ms}"),
            Self::MaxAccuracy => f.write_str("maxacc"),
            Self::MaxBatch => f.write_str("maxbatch"),
            Self::SymphonyText => f.write_str("symphony-text"),
            Self::Frontrun => f.write_str("frontrun"),
            Self::Timeout { fraction } => write!(f, "timeout:{fraction}"),
            Self::Clockwork { outstanding_ms } => write!(f, "clockwork:{outstanding_ms}"),
            Self::Naive => f.write_str("naive"),
            Self::Pinned => f.write_str("pinned"),
            Self::Nexus { frontends } => write!(f, "nexus:{frontends}"),
            Self::Shepherd { lambda } => write!(f, "shepherd:{lambda}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for name in [
            "baton",
            "symphony",
            "symphony-text",
            "eager",
            "frontrun",
            "timeout:0.25",
            "clockwork:0",
            "naive",
            "pinned",
            "nexus:8",
            "shepherd:3.03",
            "slackfit:2",
            "maxacc",
            "maxbatch",
        ] {
            assert_eq!(name.parse::<PolicyName>().unwrap().to_string(), name);
        }
        assert_eq!("clockwork".parse(), Ok(PolicyName::Clockwork { outstanding_ms: 5.0 }));
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        for name in [
            "",
            "fifo",
            "symphony:1",
            "timeout:1.1",
            "timeout:NaN",
            "clockwork:x",
            "nexus:0",
            "shepherd:1",
            "slackfit:0",
            "maxacc:1",
        ] {
            assert!(name.parse::<PolicyName>().is_err(), "{name}");
        }
    }
}
