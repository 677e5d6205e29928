//! Tensors that lie in memory which a client shares with the gateway: regions as clients register them, and tensors' places in
//! regions. Every number here comes from a client.

use super::problem::{Kind, Problem};

/// Bytes of a region's name, and of an object's.
const NAME_MAX: usize = 255;
/// Where a POSIX object ends at the latest: file offsets are signed.
const END_MAX: u64 = i64::MAX as u64;

/// A region as its client registers it: part of a shared-memory object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// What requests call it.
    pub name: String,
    /// The object's name, as `shm_open` takes it.
    pub key: String,
    /// Where the region begins in the object, bytes.
    pub offset: u64,
    /// How long it is.
    pub byte_size: u64,
}

impl Registration {
    /// The name of the object's file, and where the region ends in it.
    ///
    /// # Errors
    /// A name that leads elsewhere, or an end that no object has.
    pub fn check(&self) -> Result<(&str, u64), Problem> {
        let Self { name, key, offset, byte_size } = self;
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(wrong(name, &format!("a region's name has 1 to {NAME_MAX} bytes")));
        }
        let file = key.trim_start_matches('/');
        let is_path = file.contains(['/', '\0']) || [".", ".."].contains(&file);
        if file.is_empty() || file.len() > NAME_MAX || is_path {
            let fix = format!(
                "a key is the name of a shared-memory object, of 1 to {NAME_MAX} bytes and without a path"
            );
            return Err(wrong(name, &fix));
        }
        let end = offset.checked_add(*byte_size).filter(|end| *byte_size > 0 && *end <= END_MAX);
        let end = end.ok_or_else(|| {
            wrong(name, &format!("{byte_size} bytes from {offset} on are part of no object"))
        })?;
        Ok((file, end))
    }
}

/// Where a tensor lies: part of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The region's name.
    pub region: String,
    /// Where it begins in the region, bytes.
    pub offset: u64,
    /// Its bytes, or as many as there is room for.
    pub bytes: usize,
}

impl Part {
    /// Of a tensor's parameters `shared_memory_region`, `shared_memory_offset` and `shared_memory_byte_size`.
    ///
    /// # Errors
    /// There is a region and no length.
    pub fn of(
        tensor: &str,
        region: Option<String>,
        offset: Option<u64>,
        bytes: Option<u64>,
    ) -> Result<Option<Self>, Problem> {
        let Some(region) = region else { return Ok(None) };
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
            let text =
                format!("{tensor:?} has shared_memory_region and no shared_memory_byte_size");
            Problem::invalid(format!("{text}: give its bytes"))
        })?;
        Ok(Some(Self { region, offset: offset.unwrap_or(0), bytes }))
    }

    /// Where it begins in the object.
    ///
    /// # Errors
    /// It is not within the region.
    pub fn place_in(&self, region: &Registration) -> Result<u64, Problem> {
        let end = self.offset.checked_add(self.bytes as u64);
        if end.is_none_or(|end| end > region.byte_size) {
            let (bytes, offset, all) = (self.bytes, self.offset, region.byte_size);
            let text = format!("{bytes} bytes from {offset} on are not within its {all} bytes");
            return Err(wrong(&self.region, &text));
        }
        // The sum was checked when the region was registered.
        Ok(region.offset + self.offset)
    }
}

/// What is wrong with a region.
pub fn wrong(region: &str, text: &str) -> Problem {
    Problem::invalid(format!("shared memory {region:?}: {text}"))
}

/// The gateway has none.
pub fn switched_off() -> Problem {
    let fix = "shared_memory_mib of [gateway] in its cluster file switches it on; or send tensors in requests";
    Problem::new(Kind::NotDone, format!("this gateway has no shared memory: {fix}"))
}

/// The regions that a request may name.
pub trait Regions {
    /// Reads the bytes of `part` from its byte `at` on.
    ///
    /// # Errors
    /// There is no such region, or it has not these bytes.
    fn read(&self, part: &Part, at: u64, to: &mut [u8]) -> Result<(), Problem>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(name: &str, key: &str, offset: u64, byte_size: u64) -> Registration {
        Registration { name: name.into(), key: key.into(), offset, byte_size }
    }

    #[test]
    fn a_key_is_the_name_of_one_object_and_no_path() {
        for (key, file) in [("/input", "input"), ("input", "input"), ("..a", "..a")] {
            assert_eq!(registration("r", key, 4, 8).check(), Ok((file, 12)));
        }
        let longest = "k".repeat(255);
        assert_eq!(registration(&longest, &longest, 0, 8).check(), Ok((&longest[..], 8)));
        let long = "k".repeat(256);
        for key in ["", "/", ".", "..", "/..", "a/b", "../etc/passwd", "/a/../b", "a\0b", &long] {
            let text = registration("r", key, 0, 8).check().unwrap_err().text;
            assert!(text.contains("without a path"), "{key:?}: {text}");
        }
        for name in ["", &long] {
            assert!(registration(name, "k", 0, 8).check().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_region_ends_where_an_object_can() {
        assert_eq!(registration("r", "k", 8, END_MAX - 8).check(), Ok(("k", END_MAX)));
        for (offset, bytes) in [(0, 0), (8, END_MAX - 7), (u64::MAX, 1), (1, u64::MAX)] {
            let text = registration("r", "k", offset, bytes).check().unwrap_err().text;
            assert!(text.contains("part of no object"), "{offset} {bytes}: {text}");
        }
    }

    #[test]
    fn a_tensor_lies_within_its_region() {
        let region = registration("r", "k", 100, 10);
        let part = |offset, bytes| Part { region: "r".into(), offset, bytes };
        for (offset, bytes, place) in [(0, 10, 100), (4, 6, 104), (10, 0, 110)] {
            assert_eq!(part(offset, bytes).place_in(&region), Ok(place));
        }
        for (offset, bytes) in [(0, 11), (5, 6), (11, 0), (u64::MAX, 2), (1, usize::MAX)] {
            let text = part(offset, bytes).place_in(&region).unwrap_err().text;
            assert!(text.contains("not within its 10 bytes"), "{offset} {bytes}: {text}");
        }
    }
}
