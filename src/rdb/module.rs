//! The types that modules give values, by the 64-bit ids that stand before them.

use std::fmt;

use super::length::Reader;
use super::opcode;

/// Six bits of an id each, first character first. Source: redis 7.2 src/module.c, ModuleTypeNameCharSet.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Which module, as INFO and MODULE LIST name it, has a type. Servers don't tell.
const HOMES: &[(&str, &[&str])] = &[
    ("ReJSON-RL", &["ReJSON", "json"]),
    ("TSDB-TYPE", &["timeseries"]),
    ("MBbloom--", &["bf"]),
    ("MBbloomCF", &["bf"]),
    ("CMSk-TYPE", &["bf"]),
    ("TopK-TYPE", &["bf"]),
    ("TDIS-TYPE", &["bf"]),
    ("bloomfltr", &["bf"]),
    ("trietype0", &["search"]),
    ("ft_index0", &["search"]),
    ("ft_invidx", &["search"]),
    ("numericdx", &["search"]),
    ("taginvidx", &["search"]),
    ("scdtype00", &["search"]),
    ("graphdata", &["graph"]),
    ("graphmeta", &["graph"]),
    ("vectorset", &["vectorset"]),
];

/// A type of values, or of data beside the keys, that a module has: nine characters and the version of its encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleType(pub u64);

impl ModuleType {
    /// That of a value; `None` if it is no module's.
    pub fn of_value(value_type: u8, bytes: &[u8]) -> Option<Self> {
        (value_type == opcode::MODULE_2).then(|| Reader::at(bytes, 0).len().ok().map(ModuleType)).flatten()
    }

    /// The same of a value behind its type, of which only the first bytes are here.
    pub fn of_head(head: &[u8]) -> Option<Self> {
        let (value_type, bytes) = head.split_first()?;
        ModuleType::of_value(*value_type, bytes)
    }

    /// The version of the type's encoding.
    pub fn encoding(self) -> u16 {
        (self.0 & 0x3ff) as u16
    }

    pub fn name(self) -> String {
        let character = |nth: u32| ALPHABET.get((self.0 >> (58 - 6 * nth) & 63) as usize).copied().unwrap_or(b'?');
        (0..9).map(|nth| char::from(character(nth))).collect()
    }

    /// The modules that have it, of which a server has one; empty where that isn't known.
    pub fn homes(self) -> &'static [&'static str] {
        let name = self.name();
        HOMES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, homes)| homes)
    }
}

/// `TSDB-TYPE (module timeseries, encoding 8)`.
impl fmt::Display for ModuleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.homes().first() {
            Some(home) => write!(f, "{} (module {home}, encoding {})", self.name(), self.encoding()),
            None => write!(f, "{} (encoding {})", self.name(), self.encoding()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_type_tells_its_name_encoding_and_module() {
        let json = ModuleType(0x45e2_5238_df91_2c03);
        assert_eq!((json.name(), json.encoding()), ("ReJSON-RL".into(), 3));
        assert_eq!(json.to_string(), "ReJSON-RL (module ReJSON, encoding 3)");
        assert_eq!(ModuleType(0xbde7_2da2_bb1e_b400).to_string(), "vectorset (module vectorset, encoding 0)");
        assert_eq!(ModuleType(u64::MAX).to_string(), "_________ (encoding 1023)");
    }

    #[test]
    fn module_type_of_a_value_needs_all_of_the_id() {
        let head = [7, 0x81, 0x45, 0xe2, 0x52, 0x38, 0xdf, 0x91, 0x2c, 0x03];
        assert_eq!(ModuleType::of_head(&head), Some(ModuleType(0x45e2_5238_df91_2c03)));
        assert_eq!((ModuleType::of_head(&head[..9]), ModuleType::of_head(&[])), (None, None));
        assert_eq!(ModuleType::of_value(opcode::STRING, &head[1..]), None);
    }
}
