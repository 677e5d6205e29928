//! The `data` of a JSON tensor: numbers in one flat list, or in lists that are nested as the shape says, written straight
//! to where the tensor's bytes belong.
//!
//! The text is one value of a document that a JSON parser has accepted. This one allocates nothing, looks at each byte once
//! and is bounded in depth by the shape.

use baton_client::ElementType;

use super::problem::Problem;

/// Lists in lists: the batch, and the dimensions of a tensor.
pub const DEPTH_MAX: usize = baton_client::signature::RANK_MAX + 1;

/// Why a tensor's text does not make the tensor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DataError {
    /// It is no list.
    #[error("its data is no list of numbers")]
    NoList,
    /// The nested lists are not those of the shape.
    #[error("its lists are not nested as its shape says; nest them so, or give one flat list")]
    Nesting,
    /// There are fewer numbers.
    #[error("its data has fewer elements than its shape says")]
    TooFew,
    /// There are more numbers.
    #[error("its data has more elements than its shape says")]
    TooMany,
    /// A number does not fit the type.
    #[error("element {index} is {token}, which is no {datatype}")]
    Element {
        /// Which, in row-major order.
        index: usize,
        /// As it is written, shortened.
        token: String,
        /// The protocol's name of the type.
        datatype: &'static str,
    },
    /// JSON has no numbers of this type.
    #[error("JSON has no {0}; send it as binary data")]
    NoJson(&'static str),
}

impl DataError {
    /// Of this tensor.
    pub fn of(&self, name: &str) -> Problem {
        Problem::invalid(format!("input {name:?}: {self}"))
    }
}

/// Reads the elements of one tensor, in row-major order.
#[derive(Debug)]
pub struct Numbers<'a> {
    rest: &'a str,
    element: ElementType,
    shape: &'a [usize],
    is_nested: bool,
    /// Open lists, and how many members each has had.
    depth: usize,
    members: [usize; DEPTH_MAX],
    /// Elements read.
    index: usize,
}

/// Whether JSON has numbers of this type. The others travel as bytes only.
pub const fn has_json(element: ElementType) -> bool {
    !matches!(element, ElementType::F16 | ElementType::Bf16)
}

impl<'a> Numbers<'a> {
    /// The text of a tensor of this shape, the batch dimension first.
    ///
    /// # Errors
    /// It does not begin as one.
    pub fn new(text: &'a str, element: ElementType, shape: &'a [usize]) -> Result<Self, DataError> {
        if !has_json(element) {
            return Err(DataError::NoJson(element.oip_name()));
        }
        let first = text.trim_start().strip_prefix('[').ok_or(DataError::NoList)?;
        let is_nested = first.trim_start().starts_with('[');
        if is_nested && shape.len() > DEPTH_MAX {
            return Err(DataError::Nesting);
        }
        let (depth, members, index) = (0, [0; DEPTH_MAX], 0);
        Ok(Self { rest: text, element, shape, is_nested, depth, members, index })
    }

    /// Writes the next elements, as many as `target` has room for.
    ///
    /// # Errors
    /// There are fewer, or one is not of the type.
    pub fn read(&mut self, target: &mut [u8]) -> Result<(), DataError> {
        for place in target.chunks_exact_mut(self.element.bytes()) {
            let token = self.token()?.ok_or(DataError::TooFew)?;
            write(self.element, token, place).ok_or_else(|| DataError::Element {
                index: self.index,
                token: token.chars().take(40).collect(),
                datatype: self.element.oip_name(),
            })?;
            self.index += 1;
        }
        Ok(())
    }

    /// That was all.
    ///
    /// # Errors
    /// There are more elements, or a list is too short.
    pub fn finish(mut self) -> Result<(), DataError> {
        match self.token()? {
            Some(_) => Err(DataError::TooMany),
            None => Ok(()),
        }
    }

    /// The next element as it is written; `None` behind the last.
    fn token(&mut self) -> Result<Option<&'a str>, DataError> {
        loop {
            let Some(&byte) = self.rest.as_bytes().first() else { return Ok(None) };
            match byte {
                b'[' => self.open()?,
                b']' => self.close()?,
                b',' | b' ' | b'\t' | b'\n' | b'\r' => {}
                _ => return self.element().map(Some),
            }
            self.rest = &self.rest[1..];
        }
    }

    fn element(&mut self) -> Result<&'a str, DataError> {
        let lists = if self.is_nested { self.shape.len() } else { 1 };
        if self.depth != lists {
            return Err(DataError::Nesting);
        }
        self.members[self.depth - 1] += 1;
        let ends = |byte: &u8| matches!(byte, b',' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b'[');
        let end = self.rest.as_bytes().iter().position(ends).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(token)
    }

    fn open(&mut self) -> Result<(), DataError> {
        let lists = if self.is_nested { self.shape.len() } else { 1 };
        if self.depth == lists {
            return Err(DataError::Nesting);
        }
        if self.depth > 0 {
            self.members[self.depth - 1] += 1;
        }
        self.members[self.depth] = 0;
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), DataError> {
        self.depth = self.depth.checked_sub(1).ok_or(DataError::Nesting)?;
        if self.is_nested && self.members[self.depth] != self.shape[self.depth] {
            return Err(DataError::Nesting);
        }
        Ok(())
    }
}

/// Writes one element; `None` if it is not of the type.
fn write(element: ElementType, token: &str, place: &mut [u8]) -> Option<()> {
    macro_rules! number {
        ($type:ty) => {
            place.copy_from_slice(&token.parse::<$type>().ok()?.to_le_bytes())
        };
    }
    // The standard library reads more than JSON has: `inf`, `+1`.
    let is_number = token.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if element != ElementType::Bool && !is_number {
        return None;
    }
    match element {
        ElementType::F32 => {
            let value: f32 = token.parse().ok().filter(|value: &f32| value.is_finite())?;
            place.copy_from_slice(&value.to_le_bytes());
        }
        ElementType::F64 => {
            let value: f64 = token.parse().ok().filter(|value: &f64| value.is_finite())?;
            place.copy_from_slice(&value.to_le_bytes());
        }
        ElementType::I8 => number!(i8),
        ElementType::I16 => number!(i16),
        ElementType::I32 => number!(i32),
        ElementType::I64 => number!(i64),
        ElementType::U8 => number!(u8),
        ElementType::U16 => number!(u16),
        ElementType::U32 => number!(u32),
        ElementType::U64 => number!(u64),
        ElementType::Bool => {
            place[0] = match token {
                "true" | "1" => 1,
                "false" | "0" => 0,
                _ => return None,
            }
        }
        ElementType::F16 | ElementType::Bf16 => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, element: ElementType, shape: &[usize]) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; shape.iter().product::<usize>() * element.bytes()];
        let mut numbers = Numbers::new(text, element, shape)?;
        numbers.read(&mut bytes)?;
        numbers.finish().map(|()| bytes)
    }

    #[test]
    fn only_lists_within_lists_have_a_depth() {
        let shape = [1; DEPTH_MAX + 1];
        assert!(Numbers::new("[7]", ElementType::U8, &shape).is_ok());
        assert!(Numbers::new("[[7]]", ElementType::U8, &shape).is_err());
    }

    #[test]
    fn flat_and_nested_lists_are_the_same_tensor() {
        for text in ["[1,2,3,4,5,6]", "[[1,2,3],[4,5,6]]", " [ [1 ,2,\n3 ] , [4,5,6] ] "] {
            assert_eq!(read(text, ElementType::U8, &[2, 3]), Ok(vec![1, 2, 3, 4, 5, 6]), "{text}");
        }
        assert_eq!(read("[]", ElementType::U8, &[0]), Ok(vec![]));
    }

    #[test]
    fn lists_that_are_not_those_of_the_shape_are_refused() {
        let wrong = [
            "[[1,2],[3,4],[5,6]]",
            "[[1,2,3,4],[5,6]]",
            "[[[1,2,3],[4,5,6]]]",
            "[[1,2,3],4,5,6]",
            "[1,2,3,[4,5,6]]",
            "[[1,2,3],[4,5,[6]]]",
        ];
        for text in wrong {
            assert_eq!(read(text, ElementType::U8, &[2, 3]), Err(DataError::Nesting), "{text}");
        }
        assert_eq!(read("[1,2,3,4,5]", ElementType::U8, &[2, 3]), Err(DataError::TooFew));
        assert_eq!(read("[1,2,3,4,5,6,7]", ElementType::U8, &[2, 3]), Err(DataError::TooMany));
        assert_eq!(read("7", ElementType::U8, &[1]), Err(DataError::NoList));
        let deep = "[".repeat(1_000_000);
        assert_eq!(read(&deep, ElementType::U8, &[2, 3]), Err(DataError::Nesting));
    }

    #[test]
    fn an_element_that_is_not_of_the_type_is_named() {
        let refused = |text, element| read(text, element, &[2]).unwrap_err().to_string();
        assert_eq!(refused("[1,256]", ElementType::U8), "element 1 is 256, which is no UINT8");
        assert_eq!(refused("[-1,2]", ElementType::U64), "element 0 is -1, which is no UINT64");
        assert_eq!(refused("[1.5,2]", ElementType::I32), "element 0 is 1.5, which is no INT32");
        assert_eq!(refused("[1,1e39]", ElementType::F32), "element 1 is 1e39, which is no FP32");
        assert_eq!(refused("[null,2]", ElementType::F32), "element 0 is null, which is no FP32");
        assert_eq!(refused("[+1,2]", ElementType::I32), "element 0 is +1, which is no INT32");
        assert_eq!(refused("[inf,2]", ElementType::F64), "element 0 is inf, which is no FP64");
        assert_eq!(refused("[2,true]", ElementType::Bool), "element 0 is 2, which is no BOOL");
        assert_eq!(refused("[1,2]", ElementType::F16), "JSON has no FP16; send it as binary data");
    }

    #[test]
    fn each_type_is_little_endian() {
        assert_eq!(read("[-2]", ElementType::I16, &[1]), Ok(vec![0xfe, 0xff]));
        assert_eq!(read("[1e0]", ElementType::F32, &[1]), Ok(1f32.to_le_bytes().to_vec()));
        assert_eq!(read("[true,false,1]", ElementType::Bool, &[3]), Ok(vec![1, 0, 1]));
    }

    proptest! {
        #[test]
        fn what_serde_writes_is_read_as_it_was(values in prop::collection::vec(-1e30f32..1e30, 1..64)) {
            let text = serde_json::to_string(&values).unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            prop_assert_eq!(read(&text, ElementType::F32, &[values.len()]), Ok(bytes));
        }

        #[test]
        fn no_text_does_harm(text in "[\\[\\], 0-9a-z\"ä{}.-]{0,60}", rank in 0usize..5) {
            for &element in ElementType::ALL {
                let _ = read(&text, element, &vec![2; rank]);
            }
        }
    }
}
