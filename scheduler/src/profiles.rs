//! ℓ(b) of a model as backends measure it: one profile for each variant, the cheapest first; of a model without variants its
//! own. Pure.

use baton_core::{Nanos, Profile};
use zerocopy::little_endian::U64;

/// See the module documentation. Never empty.
pub(crate) type Profiles = Vec<Profile>;

/// A backend's measured tables, one behind the other, checked; `None` when it trusts the cluster file's.
///
/// # Errors
/// What is wrong with them, in words.
pub(crate) fn measured_profiles(
    model: u32,
    (batch_max, variants): (u32, u16),
    tables: &[U64],
) -> Result<Option<Profiles>, String> {
    if tables.is_empty() {
        return Ok(None);
    }
    if tables.len() != batch_max as usize * usize::from(variants) {
        return Err(format!(
            "the profile of model {model} has {} batch sizes, the cluster file says {batch_max} of {variants} variant(s)",
            tables.len()
        ));
    }
    let mut profiles = Profiles::new();
    for table in tables.chunks(batch_max as usize) {
        let table: Vec<Nanos> = table.iter().map(|ns| Nanos(ns.get())).collect();
        let measured = Profile::from_table(&table);
        let measured = measured.map_err(|error| format!("profile of model {model}: {error}"))?;
        // Two that take about as long may have been measured in the other order.
        let profile = profiles.last().map_or_else(|| measured.clone(), |b| slower_of(b, &measured));
        profiles.push(profile);
    }
    Ok(Some(profiles))
}

/// The larger latency of both, variant by variant.
pub(crate) fn slowest_of(a: &Profiles, b: &Profiles) -> Profiles {
    a.iter().zip(b).map(|(a, b)| slower_of(a, b)).collect()
}

/// The larger latency of both at every batch size.
fn slower_of(a: &Profile, b: &Profile) -> Profile {
    let slower: Vec<Nanos> = a.table().iter().zip(b.table()).map(|(&a, &b)| a.max(b)).collect();
    Profile::from_table(&slower).expect("the larger of two monotone tables is monotone")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(tables: &[u64]) -> Result<Option<Vec<Vec<u64>>>, String> {
        let tables: Vec<U64> = tables.iter().map(|&ns| ns.into()).collect();
        let profiles = measured_profiles(7, (2, 2), &tables)?;
        let table = |profile: &Profile| profile.table().iter().map(|latency| latency.0).collect();
        Ok(profiles.map(|profiles| profiles.iter().map(table).collect()))
    }

    #[test]
    fn each_variant_has_a_table_and_none_is_faster_than_the_one_before() {
        assert_eq!(measured(&[]), Ok(None));
        assert_eq!(measured(&[3, 5, 4, 9]), Ok(Some(vec![vec![3, 5], vec![4, 9]])));
        assert_eq!(measured(&[3, 5, 2, 9]), Ok(Some(vec![vec![3, 5], vec![3, 9]])));
        assert!(measured(&[3, 5]).unwrap_err().contains("has 2 batch sizes"));
        assert!(measured(&[3, 5, 9, 8]).unwrap_err().contains("profile of model 7"));
    }

    #[test]
    fn the_slowest_backend_counts_for_each_variant() {
        let profiles =
            |ns: [u64; 2]| ns.map(|ns| Profile::from_table(&[Nanos(ns)]).unwrap()).to_vec();
        assert_eq!(slowest_of(&profiles([3, 9]), &profiles([4, 8])), profiles([4, 9]));
    }
}
