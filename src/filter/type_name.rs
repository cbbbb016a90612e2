//! The types of values, by the names that TYPE answers.

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
    /// Every type with its name.
    pub const NAMED: [(&'static str, TypeName); 9] = [
        TypeName::String.named(),
        TypeName::List.named(),
        TypeName::Set.named(),
        TypeName::Zset.named(),
        TypeName::Hash.named(),
        TypeName::Stream.named(),
        TypeName::Array.named(),
        TypeName::VectorSet.named(),
        TypeName::Module.named(),
    ];

    pub const fn as_str(self) -> &'static str {
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

    const fn named(self) -> (&'static str, TypeName) {
        (self.as_str(), self)
    }

    pub(super) fn bit(self) -> u16 {
        1 << self as u16
    }
}
