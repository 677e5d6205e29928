//! How wire types are declared: fixed layouts, and one list that yields the structs, their kinds and
//! the decoder, so that the three cannot disagree.

/// Derives what every wire struct needs.
macro_rules! wire_struct {
    ($(#[$meta:meta])* $name:ident : $size:literal { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

/// Declares the message kinds: code, struct, the type of the tail and how it is read. Structs of other files stand behind
/// `elsewhere`.
macro_rules! messages {
    ($($(#[$meta:meta])* $code:literal $name:ident [$($tail:ident: $tail_ty:ty)?] $size:literal
       { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* })*
     elsewhere
     $($far_code:literal $far:ident [$($far_tail:ident: $far_ty:ty)?],)*) => {
        $(wire_struct! { $(#[$meta])* $name: $size { $($(#[$fmeta])* $field: $ty,)* } })*
        messages! {
            @kinds
            $($code $name [$($tail: $tail_ty)?])*
            $($far_code $far [$($far_tail: $far_ty)?])*
        }
    };
    (@kinds $($code:literal $name:ident [$($tail:ident: $tail_ty:ty)?])*) => {
        /// The kind byte of a frame.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind { $(#[doc = concat!("[`", stringify!($name), "`]")] $name = $code,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The kind with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }

        $(impl Body for $name { const KIND: Kind = Kind::$name; })*

        /// A decoded message, borrowed from the receive buffer: the fixed part and the tail.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Message<'a> {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name(&'a $name $(, &'a $tail_ty)?),)*
        }

        impl Message<'_> {
            /// Which kind it is.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$name(..) => Kind::$name,)* }
            }
        }

        /// Reads a body of the given kind.
        ///
        /// # Errors
        /// The length does not fit the kind, or a text is not UTF-8.
        pub fn decode(kind: Kind, body: &[u8]) -> Result<Message<'_>, DecodeError> {
            match kind {
                $(Kind::$name => {
                    let (head, tail) =
                        $name::ref_from_prefix(body).map_err(|_| DecodeError::BodyLength)?;
                    messages!(@build $name head tail $($tail)?)
                })*
            }
        }
    };
    (@build $name:ident $head:ident $rest:ident) => {{
        tail::none($rest)?;
        Ok(Message::$name($head))
    }};
    (@build $name:ident $head:ident $rest:ident $tail:ident) => {
        Ok(Message::$name($head, tail::$tail($rest)?))
    };
}

pub(super) use {messages, wire_struct};
