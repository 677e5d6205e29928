//! The protocol's names for the types of elements.

use baton_client::ElementType;

/// As requests and answers name it: `FP32`.
pub const fn name(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "FP32",
        ElementType::F64 => "FP64",
        ElementType::F16 => "FP16",
        ElementType::Bf16 => "BF16",
        ElementType::I8 => "INT8",
        ElementType::I16 => "INT16",
        ElementType::I32 => "INT32",
        ElementType::I64 => "INT64",
        ElementType::U8 => "UINT8",
        ElementType::U16 => "UINT16",
        ElementType::U32 => "UINT32",
        ElementType::U64 => "UINT64",
        ElementType::Bool => "BOOL",
    }
}

/// Whether JSON has numbers of this type. The others travel as bytes only.
pub const fn has_json(element: ElementType) -> bool {
    !matches!(element, ElementType::F16 | ElementType::Bf16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_a_name_of_its_own() {
        let mut names: Vec<&str> = ElementType::ALL.iter().map(|&element| name(element)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ElementType::ALL.len());
    }
}
