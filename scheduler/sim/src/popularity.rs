//! How the load is spread over the models.

use serde::Deserialize;

use crate::azure::{self, Azure};
use crate::scenario::SimModel;
use crate::scenario_file::{ScenarioError, check};

/// As a scenario file has it.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Popularity {
    #[default]
    Equal,
    Zipf {
        s: f64,
    },
    Azure(Azure),
}

impl Popularity {
    /// Gives each model its share, and under `azure` its course. Models with clients in a closed loop have none.
    pub(crate) fn share_out(
        self,
        mut models: Vec<SimModel>,
        span: (f64, f64),
        seed: u64,
    ) -> Result<Vec<SimModel>, ScenarioError> {
        match self {
            Self::Equal => {}
            Self::Zipf { s } => {
                check("popularity.s", s, 0.0, 10.0)?;
                for (rank, model) in models.iter_mut().enumerate() {
                    model.share *= (rank as f64 + 1.0).powf(-s);
                }
            }
            Self::Azure(azure) => {
                azure.check()?;
                azure::share_out(azure, &mut models, span, seed);
            }
        }
        models.iter_mut().filter(|model| model.clients > 0).for_each(|model| model.share = 0.0);
        let sum: f64 = models.iter().map(|model| model.share).sum();
        if sum > 0.0 {
            models.iter_mut().for_each(|model| model.share /= sum);
        }
        Ok(models)
    }
}
