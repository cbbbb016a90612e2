//! Strings that need no unpacking.

use std::borrow::Cow;

use super::length::{Head, Reader};

/// The text of a raw string value, unless it is packed: what SET can carry as it is.
///
/// `None` also for bytes that are no string.
pub fn plain_string(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut r = Reader::new(raw);
    match r.head().ok()? {
        Head::Lzf { .. } => None,
        head => r.string_after(head, raw.len() as u64).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_string_of_each_form() {
        assert_eq!(plain_string(b"\x05hello").as_deref(), Some(&b"hello"[..]));
        assert_eq!(plain_string(&[0xc0, 0xfb]).as_deref(), Some(&b"-5"[..]));
        assert_eq!(plain_string(&[0xc3, 9, 40, 1, 0x61, 0x61, 0xe0, 0x1b, 0, 1, 0x61, 0x61]), None);
        assert_eq!(plain_string(b"\x05hel"), None);
    }
}
