//! How many connections each host has made: one of them must not fill the table for all.

use std::collections::HashMap;
use std::net::IpAddr;

/// Accepted connections by the address they came from. As long as the connections are bounded, so is
/// this.
pub(super) struct PerHostLimits {
    max: usize,
    open: HashMap<IpAddr, usize>,
}

impl PerHostLimits {
    /// At most `max` of each.
    pub(super) fn new(max: usize) -> Self {
        Self { max, open: HashMap::new() }
    }

    /// True if there is room for another one, which then counts.
    pub(super) fn admit(&mut self, host: IpAddr) -> bool {
        let open = self.open.get(&host).copied().unwrap_or(0);
        if open < self.max {
            self.open.insert(host, open + 1);
        }
        open < self.max
    }

    /// One that was admitted is gone.
    pub(super) fn leave(&mut self, host: IpAddr) {
        match self.open.get_mut(&host) {
            Some(open) if *open > 1 => *open -= 1,
            _ => drop(self.open.remove(&host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_own_bound_and_who_is_gone_is_forgotten() {
        let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut hosts = PerHostLimits::new(2);
        assert!(hosts.admit(a) && hosts.admit(a) && !hosts.admit(a));
        assert!(hosts.admit(b), "another host");
        hosts.leave(a);
        assert!(hosts.admit(a) && !hosts.admit(a));
        for host in [a, a, b] {
            hosts.leave(host);
        }
        assert!(hosts.open.is_empty());
    }
}
