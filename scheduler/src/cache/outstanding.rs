//! The LOADs that backends have and have not reported: each has a name, which is good for one report.

use baton_core::{Gpu, GpuId, ModelId};

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// How often the entry was used; the other half of the name.
    uses: u32,
    load: Option<(ModelId, Gpu)>,
}

/// See the module documentation.
#[derive(Default, Debug)]
pub(super) struct Outstanding {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Outstanding {
    /// Names a LOAD.
    pub(super) fn insert(&mut self, model: ModelId, gpu: Gpu) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { uses: 0, load: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[at as usize];
        entry.load = Some((model, gpu));
        u64::from(at) << 32 | u64::from(entry.uses)
    }

    /// The LOAD is over, as the backend of this slot says. `None` if that has no such LOAD.
    pub(super) fn remove(&mut self, name: u64, slot: GpuId) -> Option<(ModelId, Gpu)> {
        let entry = self.entries.get_mut((name >> 32) as usize)?;
        let of_slot = |load: &mut (ModelId, Gpu)| load.1.id == slot;
        let load = entry.load.take_if(|load| entry.uses == name as u32 && of_slot(load))?;
        self.free_entry((name >> 32) as u32);
        Some(load)
    }

    /// The slot's backend is gone, and reports nothing more.
    /// `told` hears the name of each LOAD that it had.
    pub(super) fn forget(&mut self, gpu: Gpu, told: impl Fn(u64)) {
        for at in 0..self.entries.len() {
            let Entry { uses, load } = &mut self.entries[at];
            let name = (at as u64) << 32 | u64::from(*uses);
            if load.take_if(|load| load.1 == gpu).is_some() {
                told(name);
                self.free_entry(at as u32);
            }
        }
    }

    fn free_entry(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        entry.uses = entry.uses.wrapping_add(1);
        self.free.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Gpu = Gpu { id: GpuId(3), life: 7 };

    #[test]
    fn a_name_is_good_for_one_report_of_the_slots_own_backend() {
        let mut outstanding = Outstanding::default();
        let name = outstanding.insert(ModelId(5), GPU);
        assert_eq!(outstanding.remove(name, GpuId(4)), None, "another slot's");
        assert_eq!(outstanding.remove(name + 1, GpuId(3)), None);
        assert_eq!(outstanding.remove(u64::MAX, GpuId(3)), None);
        assert_eq!(outstanding.remove(name, GpuId(3)), Some((ModelId(5), GPU)));
        assert_eq!(outstanding.remove(name, GpuId(3)), None, "once");
        let next = outstanding.insert(ModelId(5), GPU);
        assert_ne!(next, name);
        assert_eq!(next >> 32, name >> 32, "its place is used again");
        assert_eq!(outstanding.remove(name, GpuId(3)), None, "an old name");
    }

    #[test]
    fn what_a_lost_backend_had_is_forgotten() {
        let mut outstanding = Outstanding::default();
        let name = outstanding.insert(ModelId(5), GPU);
        let other = outstanding.insert(ModelId(6), Gpu { id: GpuId(1), life: 0 });
        let second = outstanding.insert(ModelId(7), GPU);
        let forgotten = std::cell::RefCell::new(Vec::new());
        outstanding.forget(GPU, |name| forgotten.borrow_mut().push(name));
        assert_eq!(forgotten.into_inner(), [name, second]);
        assert_eq!([name, second].map(|name| outstanding.remove(name, GpuId(3))), [None; 2]);
        assert_eq!(outstanding.remove(other, GpuId(1)).unwrap().0, ModelId(6));
    }
}
