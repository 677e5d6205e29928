//! What a scenario may say and its author hardly means: such runs are right, and lose tasks that no policy could save.

use baton_topo::per_cent;

use crate::scenario::{Scenario, SimModel};

impl Scenario {
    /// One line for each, with the fix.
    pub fn doubts(&self) -> Vec<String> {
        // Copies are alike.
        let firsts = || self.models.iter().filter(|model| model.copy == 1);
        let delays = self.network.ctrl + self.network.data_per_task;
        let hopeless = firsts().filter_map(|model| {
            let least_ms = (model.profile.latency(1) + delays).as_millis_f64();
            let SimModel { name, slo_ms, .. } = model;
            (least_ms > *slo_ms).then(|| {
                format!(
                    "{name}: no task can end within slo_ms = {slo_ms}, because ℓ(1) and the network take {least_ms} ms; \
                     raise slo_ms, or lower these"
                )
            })
        });
        hopeless.chain(firsts().filter_map(of_accuracy)).collect()
    }
}

fn of_accuracy(model: &SimModel) -> Option<String> {
    let (name, most) = (&model.name, model.variants.last()?.accuracy);
    if most <= 1.0 {
        return Some(format!(
            "{name}: the most accurate variant has {most} per cent; accuracy is in per cent, so write 80.2 instead of 0.802"
        ));
    }
    let least = per_cent(model.asking.accuracy_min);
    (least > most).then(|| {
        format!(
            "{name}: tasks that ask for accuracy_min = {least} are dropped, because no variant has more than {most}; \
             lower it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_policy_could_serve_is_said_once_for_all_copies() {
        let doubts = |slo_ms: f64, network: &str, keys: &str| {
            let text = format!(
                "gpus = 1\nduration_s = 1\n{network}\n[[model]]\nname = 'm'\nslo_ms = {slo_ms}\ncopies = 3\n{keys}"
            );
            Scenario::parse(&text).unwrap().doubts()
        };
        let line = "alpha_ms = 1\nbeta_ms = 2";
        let delay = "network = { ctrl_us = 300 }";
        assert_eq!(doubts(3.0, "", line), Vec::<String>::new());
        assert!(
            matches!(&doubts(3.0, delay, line)[..], [one] if one.contains("take 3.3 ms; raise slo_ms"))
        );
        let variants = |least: &str, most: f64| {
            let of = |name: &str, accuracy: f64, alpha_ms: f64| {
                format!(
                    "[[model.variant]]\nname = '{name}'\naccuracy = {accuracy}\nalpha_ms = {alpha_ms}\nbeta_ms = 1\n"
                )
            };
            [least, &of("a", most - 0.1, 1.0), &of("b", most, 2.0)].join("\n")
        };
        assert_eq!(doubts(30.0, "", &variants("accuracy_min = 80", 80.0)), Vec::<String>::new());
        let asks = doubts(30.0, "", &variants("accuracy_min = 80.1", 80.0));
        assert!(
            matches!(&asks[..], [one] if one.contains("no variant has more than 80; lower it"))
        );
        let fraction = doubts(30.0, "", &variants("accuracy_min = 0.75", 0.8));
        assert!(
            matches!(&fraction[..], [one] if one.contains("has 0.8 per cent; accuracy is in per cent"))
        );
    }
}
