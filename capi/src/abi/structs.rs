//! The structs of `baton.h`, field by field.

use std::ffi::{c_char, c_void};

/// A struct as C has it: its name, its bytes, and its fields with offset and bytes.
pub type Layout = (&'static str, usize, Vec<(&'static str, usize, usize)>);

/// Bytes of what the function takes of a struct.
const fn size_of_field<S, F>(_: fn(&S) -> F) -> usize {
    size_of::<F>()
}

/// A struct whose first field is its size, as the program was compiled with.
pub trait Versioned: Copy {
    const NAME: &'static str;
    /// Of the first version of `baton.h` that had it: what programs know at least.
    const FIRST_BYTES: usize;
    fn set_struct_size(&mut self, bytes: u32);
}

macro_rules! structs {
    ($($name:literal $type:ident until $last:ident { $($field:ident: $kind:ty,)* })*) => {
        $(
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $type { pub struct_size: u32, $(pub $field: $kind,)* }

            impl Versioned for $type {
                const NAME: &'static str = $name;
                const FIRST_BYTES: usize =
                    std::mem::offset_of!($type, $last) + size_of_field(|of: &$type| of.$last);
                fn set_struct_size(&mut self, bytes: u32) {
                    self.struct_size = bytes;
                }
            }
        )*

        /// All of them.
        pub fn layouts() -> Vec<Layout> {
            vec![$((
                $name,
                size_of::<$type>(),
                vec![("struct_size", 0, 4), $((stringify!($field), std::mem::offset_of!($type, $field), size_of::<$kind>()),)*],
            ),)*]
        }
    };
}

structs! {
    "baton_config" Config until leave_timeout_ns {
        slots_per_model: u32,
        scheduler: *const c_char,
        etcd: *const c_char,
        etcd_prefix: *const c_char,
        models: *const *const c_char,
        model_count: usize,
        listen: *const c_char,
        tls_ca: *const c_char,
        tls_cert: *const c_char,
        tls_key: *const c_char,
        etcd_lease_ttl_s: u32,
        reserved: u32,
        connect_timeout_ns: u64,
        lease_grace_ns: u64,
        leave_timeout_ns: u64,
    }
    "baton_model_info" ModelInfo until retry_after_ns {
        is_removed: u32,
        name: *const c_char,
        input_bytes: usize,
        output_bytes: usize,
        input_count: u32,
        output_count: u32,
        slo_ns: u64,
        retry_after_ns: u64,
    }
    "baton_tensor" Tensor until bytes {
        element: i32,
        rank: u32,
        varies: u32,
        shape: [u32; 8],
        name: *const c_char,
        data: *const c_void,
        bytes: usize,
    }
    "baton_outcome" OutcomeStruct until retry_after_ns {
        kind: i32,
        reason: i32,
        ended_by: i32,
        is_late: u32,
        resubmitted: u32,
        batch_size: u32,
        gpu: u32,
        reply: ReplyHandle,
        submitted_ns: u64,
        deadline_ns: u64,
        started_ns: u64,
        finished_ns: u64,
        ended_ns: u64,
        clock_error_ns: u64,
        retry_after_ns: u64,
        is_cold: u32,
        reserved: u32,
    }
}

macro_rules! handles {
    ($($name:literal $type:ident,)*) => {
        $(
            /// A number that stands for a value of the library; zero stands for none.
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $type { pub id: u64 }
        )*

        /// Their names in C.
        pub const HANDLES: &[&str] = &[$($name,)*];
    };
}

handles! {
    "baton_client" ClientHandle,
    "baton_model" ModelHandle,
    "baton_input" InputHandle,
    "baton_ticket" TicketHandle,
    "baton_reply" ReplyHandle,
    "baton_queue" QueueHandle,
    "baton_key" Key,
}
