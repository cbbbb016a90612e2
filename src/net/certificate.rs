//! Who a certificate says it is, and who issued it: just enough of X.509 for a message.

use std::fmt;

/// How much of a name a message shows.
const NAME_CHARS_MAX: usize = 100;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF16_STRING: u8 = 0x1e;
/// The version, which only certificates of version 1 lack.
const CONTEXT_0: u8 = 0xa0;

/// The parts of a name that are shown, in this order. Source: RFC 5280, appendix A.1.
const SHOWN: [(&[u8], &str); 3] = [(&[0x55, 4, 3], "CN"), (&[0x55, 4, 10], "O"), (&[0x55, 4, 11], "OU")];

/// The two names in a certificate, as `CN=server, O=Example`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    pub subject: String,
    pub issuer: String,
}

impl Names {
    /// Reads a certificate in DER form; both names are empty where it is none.
    pub fn of(certificate: &[u8]) -> Self {
        read(certificate).unwrap_or_default()
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |name: &str| if name.is_empty() { "no name".to_owned() } else { name.to_owned() };
        write!(f, "{}, issuer {}", word(&self.subject), word(&self.issuer))
    }
}

/// Source: RFC 5280, section 4.1.
fn read(certificate: &[u8]) -> Option<Names> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut rest, _) = expect(certificate, SEQUENCE)?;
    if let Some((_, behind)) = expect(rest, CONTEXT_0) {
        rest = behind;
    }
    let (_, _serial, rest) = element(rest)?;
    let (_, _algorithm, rest) = element(rest)?;
    let (issuer, rest) = expect(rest, SEQUENCE)?;
    let (_, _validity, rest) = element(rest)?;
    let (subject, _) = expect(rest, SEQUENCE)?;
    Some(Names { subject: name(subject), issuer: name(issuer) })
}

/// Reads a list of sets of pairs; those that can't be read are left out.
fn name(mut parts: &[u8]) -> String {
    let mut found = Vec::new();
    while let Some((mut set, rest)) = expect(parts, SET) {
        parts = rest;
        while let Some((pair, rest)) = expect(set, SEQUENCE) {
            set = rest;
            found.extend(part(pair));
        }
    }
    found.sort_by_key(|(place, _)| *place);
    let words: Vec<String> = found.into_iter().map(|(_, word)| word).collect();
    words.join(", ").chars().take(NAME_CHARS_MAX).collect()
}

/// A part of a name that is shown: its place among these, and its text.
fn part(pair: &[u8]) -> Option<(usize, String)> {
    let (id, rest) = expect(pair, OBJECT_IDENTIFIER)?;
    let (tag, text, _) = element(rest)?;
    let (place, (_, word)) = SHOWN.iter().enumerate().find(|(_, (known, _))| *known == id)?;
    let text = if tag == UTF16_STRING { utf16(text) } else { String::from_utf8_lossy(text).into_owned() };
    Some((place, format!("{word}={}", text.escape_debug())))
}

fn utf16(text: &[u8]) -> String {
    let units = text.chunks_exact(2).map(|pair| pair.iter().fold(0, |unit, byte| unit << 8 | u16::from(*byte)));
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// The content of the first element, which must have this tag, and what follows it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// The first element's tag and content, and what follows it. Source: ITU-T X.690, section 8.1.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // No certificate needs more than four bytes for a length.
        0x81..=0x84 => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (len.iter().try_fold(0_usize, |len, byte| len.checked_mul(256)?.checked_add(usize::from(*byte)))?, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    fn certificate(file: &str) -> Vec<u8> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(file);
        CertificateDer::from_pem_file(path).unwrap().to_vec()
    }

    #[test]
    fn names_of_certificates_are_read() {
        let names = Names::of(&certificate("server.pem"));
        assert!(!names.subject.is_empty() && !names.issuer.is_empty(), "{names:?}");
        assert_eq!(names.issuer, Names::of(&certificate("ca.pem")).subject);
        assert_ne!(names.issuer, Names::of(&certificate("other-ca.pem")).subject);
        assert_eq!(Names::of(b"none").to_string(), "no name, issuer no name");
    }

    #[test]
    fn name_shows_its_parts_in_order_and_hides_controls() {
        let pair = |id: u8, tag: u8, text: &[u8]| {
            let value = [&[tag, text.len() as u8], text].concat();
            let pair = [&[OBJECT_IDENTIFIER, 3, 0x55, 4, id], &value[..]].concat();
            let pair = [&[SEQUENCE, pair.len() as u8], &pair[..]].concat();
            [&[SET, pair.len() as u8], &pair[..]].concat()
        };
        let text = [pair(10, 0x0c, b"Ex\x1bample"), pair(6, 0x13, b"DE"), pair(3, UTF16_STRING, b"\0a\0b")].concat();
        assert_eq!(name(&text), r"CN=ab, O=Ex\u{1b}ample");
        assert_eq!(name(&pair(3, 0x0c, &[b'x'; 100])).len(), 100);
    }

    proptest! {
        #[test]
        fn names_of_anything_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0..2000_usize, at in 0..600_usize, byte: u8) {
            let _ = Names::of(&bytes);
            let mut real = certificate("server.pem");
            real.truncate(cut);
            if let Some(place) = real.get_mut(at) {
                *place = byte;
            }
            let _ = Names::of(&real);
        }
    }
}
