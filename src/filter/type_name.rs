//! The types of values, by the names that TYPE answers.

use super::{Error, nearest};

/// A type of value that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TypeName {
    String,
    List,
    Set,
    Zset,
    Hash,
    Stream,
    /// Redis 8.8.
    Array,
    /// Redis 8.0.
    VectorSet,
    /// Any module's type but vector sets.
    Module,
}

impl TypeName {
    pub const ALL: [TypeName; 9] = [
        TypeName::String,
        TypeName::List,
        TypeName::Set,
        TypeName::Zset,
        TypeName::Hash,
        TypeName::Stream,
        TypeName::Array,
        TypeName::VectorSet,
        TypeName::Module,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TypeName::String => "string",
            TypeName::List => "list",
            TypeName::Set => "set",
            TypeName::Zset => "zset",
            TypeName::Hash => "hash",
            TypeName::Stream => "stream",
            TypeName::Array => "array",
            TypeName::VectorSet => "vectorset",
            TypeName::Module => "module",
        }
    }

    /// # Errors
    /// `UnknownType`, with the nearest name there is.
    pub fn parse(word: &str) -> Result<Self, Error> {
        let named = |name: &str| {
            TypeName::ALL
                .into_iter()
                .find(|known| known.as_str().eq_ignore_ascii_case(name))
        };
        named(word).ok_or_else(|| {
            let names = TypeName::ALL.iter().map(|known| known.as_str().to_owned());
            let near = nearest(word, names).and_then(|name| named(&name));
            Error::UnknownType {
                word: word.to_owned(),
                nearest: near.unwrap_or(TypeName::String).as_str(),
            }
        })
    }

    pub(super) fn bit(self) -> u16 {
        1 << self as u16
    }
}
