//! Macros by which this crate declares what two parties share, each thing once.
//!
//! A declaration makes the constants or the type, and beside them its description: [`Constant`]s or [`Word`]s. The C header,
//! the SystemVerilog package and the tables of the documents are written from descriptions alone ([`crate::describe`]). What
//! is declared is also asserted at compile time: words are aligned, lie inside their line or page, and do not overlap; fields
//! of an entry leave no gap; numbers of a kind are different.

/// A named number.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// As declared.
    pub name: &'static str,
    /// The number.
    pub value: u64,
    /// Lines of its comment.
    pub text: &'static [&'static str],
}

/// A word of a shared page, or a field of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// As declared.
    pub name: &'static str,
    /// Bytes from the start of its page, line or entry.
    pub offset: usize,
    /// Size; of an array all of it.
    pub bytes: usize,
    /// Alignment: its offset is a multiple of this.
    pub align: usize,
    /// Its type, as declared.
    pub kind: &'static str,
    /// Lines of its comment.
    pub text: &'static [&'static str],
}

/// Returns true if words are aligned, in ascending order without overlap, and end within `bytes`.
pub const fn apart(words: &[Word], bytes: usize) -> bool {
    let (mut index, mut end) = (0, 0);
    while index < words.len() {
        let word = &words[index];
        if word.offset < end || word.offset % word.align != 0 || word.bytes == 0 {
            return false;
        }
        end = word.offset + word.bytes;
        index += 1;
    }
    end <= bytes
}

/// Returns true if fields follow each other without a gap and fill `bytes`.
pub const fn full(fields: &[Word], bytes: usize) -> bool {
    let (mut index, mut end) = (0, 0);
    while index < fields.len() {
        if fields[index].offset != end {
            return false;
        }
        end += fields[index].bytes;
        index += 1;
    }
    end == bytes
}

/// Returns whether no two constants have one value.
pub const fn distinct(constants: &[Constant]) -> bool {
    let mut one = 0;
    while one < constants.len() {
        let mut other = one + 1;
        while other < constants.len() {
            if constants[one].value == constants[other].value {
                return false;
            }
            other += 1;
        }
        one += 1;
    }
    true
}

/// Declares numbers, and `$all`, their description.
macro_rules! constants {
    ($all:ident: $($(#[doc = $text:literal])+ $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[doc = $text])+ pub const $name: $type = $value;)+

        /// Description of the numbers declared here, in order.
        #[allow(dead_code)] // read by what is generated, which only tests make
        pub const $all: &[$crate::declare::Constant] = &[$(
            $crate::declare::Constant { name: stringify!($name), value: $name as u64, text: &[$($text),+] },
        )+];
    };
}

/// Declares the words of a page or a line as offsets in a module, and `WORDS`, their description.
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        mod $module:ident in $bytes:ident {
            $($(#[doc = $text:literal])+ $name:ident: $type:ty = $offset:literal;)+
        }
    ) => {
        $(#[doc = $about])+
        pub mod $module {
            #[allow(unused_imports)]
            use super::*;

            $($(#[doc = $text])+ pub const $name: usize = $offset;)+

            /// Description of the words.
            pub const WORDS: &[$crate::declare::Word] = &[$($crate::declare::Word {
                name: stringify!($name),
                offset: $offset,
                bytes: core::mem::size_of::<$type>(),
                align: core::mem::align_of::<$type>(),
                kind: stringify!($type),
                text: &[$($text),+],
            },)+];

            /// Documentation of the module.
            pub const ABOUT: &[&str] = &[$($about),+];

            const _: () = assert!($crate::declare::apart(WORDS, $bytes));
        }
    };
}

/// Declares an enum that crosses the boundary as a number: the type, `ALL`, `COUNT`, `from_raw`, and `DECLARED`, its
/// description. With `else $other` an unknown number counts as that one.
macro_rules! kinds {
    (
        $(#[$about:meta])*
        enum $name:ident: $raw:ident $(else $other:ident)? {
            $($(#[doc = $text:literal])+ $kind:ident = $value:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($raw)]
        pub enum $name {
            $($(#[doc = $text])+ $kind = $value,)+
        }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];
            /// Number of kinds.
            pub const COUNT: usize = Self::ALL.len();
            /// Description of the numbers.
            pub const DECLARED: &'static [$crate::declare::Constant] = &[$(
                $crate::declare::Constant { name: stringify!($kind), value: $value, text: &[$($text),+] },
            )+];

            kinds!(@from_raw $raw, [$($kind = $value,)+] $($other)?);
        }

        const _: () = assert!($crate::declare::distinct($name::DECLARED));
    };
    (@from_raw $raw:ident, [$($kind:ident = $value:literal,)+]) => {
        /// The one with this number, if there is one.
        pub const fn from_raw(raw: $raw) -> Option<Self> {
            match raw {
                $($value => Some(Self::$kind),)+
                _ => None,
            }
        }
    };
    (@from_raw $raw:ident, [$($kind:ident = $value:literal,)+] $other:ident) => {
        /// The one with this number; an unknown number counts as
        #[doc = concat!("`", stringify!($other), "`.")]
        pub const fn from_raw(raw: $raw) -> Self {
            match raw {
                $($value => Self::$kind,)+
                _ => Self::$other,
            }
        }
    };
}

/// Declares an entry, frame or datagram: a `repr(C)` struct without padding, and `FIELDS`, its description.
macro_rules! entry {
    (
        $(#[$about:meta])*
        struct $name:ident in $bytes:literal {
            $($(#[doc = $text:literal])+ $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$about])*
        #[repr(C)]
        pub struct $name {
            $($(#[doc = $text])+ pub $field: $type,)+
        }

        impl $name {
            /// Description of the fields, by offset.
            pub const FIELDS: &'static [$crate::declare::Word] = &[$($crate::declare::Word {
                name: stringify!($field),
                offset: core::mem::offset_of!($name, $field),
                bytes: core::mem::size_of::<$type>(),
                align: core::mem::align_of::<$type>(),
                kind: stringify!($type),
                text: &[$($text),+],
            },)+];
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $bytes);
            assert!($crate::declare::full($name::FIELDS, $bytes));
            assert!($crate::declare::apart($name::FIELDS, $bytes));
        };
    };
}

pub(crate) use {constants, entry, kinds, words};

#[cfg(test)]
mod tests {
    use super::*;

    const fn word(offset: usize, bytes: usize) -> Word {
        Word { name: "", offset, bytes, align: bytes, kind: "", text: &[] }
    }

    #[test]
    fn words_that_overlap_or_are_misaligned_or_outside_are_found() {
        assert!(apart(&[word(0, 8), word(8, 4), word(16, 8)], 24));
        for bad in [[word(0, 8), word(4, 4)], [word(0, 4), word(12, 8)], [word(0, 8), word(24, 8)]] {
            assert!(!apart(&bad, 24));
        }
        assert!(full(&[word(0, 8), word(8, 8)], 16));
        assert!(!full(&[word(0, 4), word(8, 8)], 16) && !full(&[word(0, 8)], 16));
    }

    #[test]
    fn numbers_that_are_used_twice_are_found() {
        let number = |value| Constant { name: "", value, text: &[] };
        assert!(distinct(&[number(1), number(2)]));
        assert!(!distinct(&[number(1), number(2), number(1)]));
    }
}
