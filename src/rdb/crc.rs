//! CRC-64/Jones, the checksum of RDB files and DUMP payloads.

/// Below this many bytes a table walk beats setting up the vector code.
const SHORT_BYTES: usize = 48;

/// Carries the CRC-64 `crc` on over `bytes`; the CRC of nothing is 0.
///
/// Polynomial 0xad93d23594c935a9, reflected in and out, no final xor. Source: redis 7.0 src/crc64.c.
pub fn crc64(crc: u64, bytes: &[u8]) -> u64 {
    if bytes.len() < SHORT_BYTES {
        return crc64::crc64(crc, bytes);
    }
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc64Redis, crc);
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc64_of_check_string_is_the_known_value() {
        assert_eq!(crc64(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn crc64_at_every_size_and_split_equals_the_table_walk() {
        let bytes: Vec<u8> = (0..600u32).map(|i| (i * 31 % 251) as u8).collect();
        for end in 0..bytes.len() {
            let plain = crc64::crc64(0, &bytes[..end]);
            assert_eq!(crc64(0, &bytes[..end]), plain, "{end} bytes");
            let split = end / 3;
            assert_eq!(crc64(crc64(0, &bytes[..split]), &bytes[split..end]), plain);
        }
    }
}
