//! Memory that clients share with the gateway: POSIX objects, parts of which they register as regions.
//!
//! Inputs are read from the object and answers written to it by file operations, at places that are checked when they are used. A
//! mapping would end the process if the client shortened its object.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_client::TensorRef;
use baton_metrics::Metric;
use rustix::fs::OFlags;

use crate::protocol::memory::{Part, Regions, Registration, switched_off, wrong};
use crate::protocol::problem::{Kind, Problem};
use crate::protocol::request::Request;

/// Regions at a time; each keeps a file open.
const REGIONS_MAX: usize = 256;
/// Where the system has the objects.
const FOLDER: &str = "/dev/shm";
/// When a request that uses a region may have ended.
const RETRY: Duration = Duration::from_millis(50);

/// A registered region. Requests that use it keep it.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) registration: Registration,
    file: File,
}

/// What clients have registered.
#[derive(Debug)]
pub(crate) struct Memory {
    folder: PathBuf,
    bytes_max: u64,
    regions: Mutex<BTreeMap<String, Arc<Region>>>,
}

impl Memory {
    /// With room for this many bytes of all regions together.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { folder: FOLDER.into(), bytes_max, regions: Mutex::default() }
    }

    /// # Errors
    /// The gateway has none.
    pub(crate) fn of(memory: &Option<Self>) -> Result<&Self, Problem> {
        memory.as_ref().ok_or_else(switched_off)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a region in. One that is there already stays so: clients repeat themselves.
    ///
    /// # Errors
    /// There is no such object, its name is another region's, or there is no room.
    pub(crate) fn register(&self, registration: Registration) -> Result<(), Problem> {
        let file = self.open(&registration)?;
        let name = registration.name.clone();
        let region = Region { registration, file };
        let mut regions = self.lock();
        if let Some(known) = regions.get(&name) {
            if known.registration != region.registration {
                let fix =
                    "it is registered with another key, offset or byte_size: unregister it first";
                return Err(wrong(&name, fix));
            }
            if known.is_same_object(&region) {
                return Ok(());
            }
            unused(known)?;
            regions.remove(&name);
        }
        if !self.has_room(&regions, &region) {
            // Their clients are gone, or need them no more.
            regions.retain(|_, region| Arc::strong_count(region) > 1 || !region.is_unlinked());
        }
        if !self.has_room(&regions, &region) {
            let (used, most) = (bytes_of(&regions), self.bytes_max);
            let text = format!(
                "shared memory {name:?}: {} of {REGIONS_MAX} regions with {used} of {most} bytes are registered: unregister some, or raise shared_memory_mib of [gateway]",
                regions.len()
            );
            return Err(Problem::shed(&text, RETRY));
        }
        regions.insert(name, Arc::new(region));
        Ok(())
    }

    fn has_room(&self, regions: &BTreeMap<String, Arc<Region>>, more: &Region) -> bool {
        let bytes = bytes_of(regions).saturating_add(more.registration.byte_size);
        regions.len() < REGIONS_MAX && bytes <= self.bytes_max
    }

    /// The object, if the region is within it. What else the name may be is not said.
    fn open(&self, registration: &Registration) -> Result<File, Problem> {
        let (file, end) = registration.check()?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits().cast_signed());
        let opened = options.open(self.folder.join(file)).and_then(|file| {
            let said = file.metadata()?;
            Ok((file, said.is_file(), said.len()))
        });
        let none = || {
            let text = "its key names no shared-memory object that the gateway can read and write";
            wrong(&registration.name, text)
        };
        let (file, is_file, bytes) = opened.map_err(|_| none())?;
        match (is_file, end <= bytes) {
            (false, _) => Err(none()),
            (true, false) => {
                let text = format!("it ends at byte {end}; the object has {bytes}");
                Err(wrong(&registration.name, &text))
            }
            (true, true) => Ok(file),
        }
    }

    /// Forgets the region of this name, or all. One that is not there is forgotten already.
    ///
    /// # Errors
    /// A request uses it: its answer may still be written there.
    pub(crate) fn unregister(&self, name: Option<&str>) -> Result<(), Problem> {
        let mut regions = self.lock();
        match name {
            Some(name) => {
                regions.get(name).map_or(Ok(()), unused)?;
                regions.remove(name);
            }
            None => {
                regions.values().try_for_each(unused)?;
                regions.clear();
            }
        }
        Ok(())
    }

    /// What is registered under this name, or all.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn status(&self, name: Option<&str>) -> Result<Vec<Registration>, Problem> {
        let regions = self.lock();
        let known = |region: &Arc<Region>| region.registration.clone();
        match name {
            None => Ok(regions.values().map(known).collect()),
            Some(name) => match regions.get(name) {
                Some(region) => Ok(vec![known(region)]),
                None => Err(unknown(name)),
            },
        }
    }

    /// As Prometheus scrapes them.
    pub(crate) fn metrics(memory: &Option<Self>) -> Vec<Metric> {
        let (count, bytes) = memory.as_ref().map_or((0, 0), |memory| {
            let regions = memory.lock();
            (regions.len(), bytes_of(&regions))
        });
        let regions = "Regions of shared memory that clients have registered";
        let all = "Bytes of shared memory that clients have registered";
        vec![
            Metric::gauge("baton_gateway_shared_regions", regions, count as f64),
            Metric::gauge("baton_gateway_shared_bytes", all, bytes as f64),
        ]
    }
}

fn bytes_of(regions: &BTreeMap<String, Arc<Region>>) -> u64 {
    let bytes = regions.values().map(|region| region.registration.byte_size);
    bytes.fold(0, u64::saturating_add)
}

fn unknown(name: &str) -> Problem {
    let text = format!("no shared memory is registered as {name:?}: register it first");
    Problem::new(Kind::NotFound, text)
}

fn unused(region: &Arc<Region>) -> Result<(), Problem> {
    if Arc::strong_count(region) == 1 {
        return Ok(());
    }
    let text = format!("requests use the shared memory {:?}", region.registration.name);
    Err(Problem::shed(&text, RETRY))
}

impl Region {
    fn is_same_object(&self, other: &Self) -> bool {
        let id = |region: &Self| region.file.metadata().map(|said| (said.dev(), said.ino()));
        matches!((id(self), id(other)), (Ok(one), Ok(another)) if one == another)
    }

    fn is_unlinked(&self) -> bool {
        self.file.metadata().is_ok_and(|said| said.nlink() == 0)
    }

    /// Writes from this byte of the object on. What would make the object longer is refused: the client has shortened it.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let end = at.saturating_add(bytes.len() as u64);
        if end > self.file.metadata()?.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file.write_all_at(bytes, at)
    }
}

/// The regions of one request: they stay registered until it has ended.
#[derive(Debug)]
pub(crate) struct Used(Vec<Arc<Region>>);

impl Used {
    /// # Errors
    /// A region is not registered, or not long enough; or there is no shared memory.
    pub(crate) fn by(memory: &Option<Memory>, request: &Request<'_>) -> Result<Self, Problem> {
        let mut parts = request.parts().peekable();
        if parts.peek().is_none() {
            return Ok(Self(Vec::new()));
        }
        let known = Memory::of(memory)?.lock();
        let region = |part: &Part| {
            let region = known.get(&part.region).ok_or_else(|| unknown(&part.region))?;
            part.place_in(&region.registration)?;
            Ok(Arc::clone(region))
        };
        parts.map(region).collect::<Result<_, _>>().map(Self)
    }

    fn find(&self, part: &Part) -> Result<(&Region, u64), Problem> {
        let is_it = |region: &&Arc<Region>| region.registration.name == part.region;
        let region = self.0.iter().find(is_it).ok_or_else(|| unknown(&part.region))?;
        Ok((region, part.place_in(&region.registration)?))
    }

    /// Writes an output, one row of its batch behind the other.
    ///
    /// # Errors
    /// It has no room there.
    pub(crate) fn write<'a>(
        &self,
        part: &Part,
        rows: impl Iterator<Item = &'a TensorRef<'a>> + Clone,
    ) -> Result<(), Problem> {
        let bytes: usize = rows.clone().map(|row| row.bytes.len()).sum();
        if bytes > part.bytes {
            let text = format!("the output has {bytes} bytes and room for {}", part.bytes);
            return Err(wrong(&part.region, &format!("{text}: raise shared_memory_byte_size")));
        }
        let (region, mut place) = self.find(part)?;
        for row in rows {
            region.write(place, row.bytes).map_err(|error| failed(part, "written", &error))?;
            place += row.bytes.len() as u64;
        }
        Ok(())
    }
}

impl Regions for Used {
    fn read(&self, part: &Part, at: u64, to: &mut [u8]) -> Result<(), Problem> {
        let (region, place) = self.find(part)?;
        region.file.read_exact_at(to, place + at).map_err(|error| failed(part, "read", &error))
    }
}

fn failed(part: &Part, what: &str, error: &io::Error) -> Problem {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the object is shorter than when it was registered".into(),
        _ => error.to_string(),
    };
    wrong(&part.region, &format!("it cannot be {what}: {why}"))
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
