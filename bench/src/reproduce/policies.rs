//! Who is compared, and how each is drawn.

use baton_sim::PolicyName;

use crate::plot::{
    BLACK, BLUE, Colour, GREEN, GREY, Key, Look, Mark, ORANGE, PURPLE, SKY_BLUE, Style, VERMILLION,
};

/// One policy as the simulator knows it.
#[derive(PartialEq, Debug)]
pub(crate) struct Policy {
    /// With its parameter, as `baton sim --policy` takes it.
    pub(crate) name: &'static str,
    pub(crate) colour: Colour,
    pub(crate) mark: Mark,
    /// A setting of the policy above it: drawn in the same colour, thinner, with hollow marks.
    pub(crate) variant: bool,
    /// One of those that may be best somewhere; the large sweeps compare only these.
    pub(crate) contender: bool,
}

/// In the order of tables and legends; `clockwork:0` and `timeout:0.2` are the best settings found.
pub(crate) const POLICIES: [Policy; 11] = [
    policy("baton", BLACK, Mark::Circle).contender(),
    policy("symphony", BLUE, Mark::Circle).contender(),
    policy("symphony-text", BLUE, Mark::Circle).variant(),
    policy("frontrun", SKY_BLUE, Mark::Square).contender(),
    policy("timeout:0.2", GREEN, Mark::Triangle).contender(),
    policy("eager", ORANGE, Mark::Diamond).contender(),
    policy("clockwork:0", VERMILLION, Mark::Wedge).contender(),
    policy("clockwork:5", VERMILLION, Mark::Wedge).variant(),
    policy("nexus:1", PURPLE, Mark::Square),
    policy("nexus:8", PURPLE, Mark::Square).variant(),
    policy("shepherd:3.03", GREY, Mark::Triangle),
];

pub(crate) const fn policy(name: &'static str, colour: Colour, mark: Mark) -> Policy {
    Policy { name, colour, mark, variant: false, contender: false }
}

impl Policy {
    const fn variant(self) -> Self {
        Self { variant: true, ..self }
    }

    const fn contender(self) -> Self {
        Self { contender: true, ..self }
    }

    pub(crate) fn style(&self) -> Style {
        Style { colour: self.colour, mark: self.mark, light: self.variant }
    }

    pub(crate) fn key(&self) -> Key {
        Key { label: self.name.to_owned(), look: Look::Series(self.style()) }
    }

    pub(crate) fn parsed(&self) -> PolicyName {
        self.name.parse().expect("the tests parse every policy of the list")
    }
}

/// The policies whose numbers are set beside the paper's words on Symphony.
pub(crate) const OURS: [&str; 2] = ["baton", "symphony"];

/// Those of the list for which this holds.
pub(crate) fn those(choice: impl Fn(&Policy) -> bool) -> Vec<&'static Policy> {
    POLICIES.iter().filter(|policy| choice(policy)).collect()
}

/// The policy of this name, if the list has it.
pub(crate) fn named(name: &str) -> Option<&'static Policy> {
    POLICIES.iter().find(|policy| policy.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_list_is_one_of_the_simulator() {
        for policy in &POLICIES {
            assert_eq!(policy.parsed().to_string(), policy.name);
        }
    }
}
