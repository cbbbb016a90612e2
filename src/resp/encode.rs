//! Writes commands as RESP arrays of bulk strings.

/// Appends `*<count>\r\n`.
pub fn array_header(out: &mut Vec<u8>, count: usize) {
    header(out, b'*', count);
}

/// Appends `$<len>\r\n`.
pub fn bulk_header(out: &mut Vec<u8>, len: usize) {
    header(out, b'$', len);
}

/// Appends `bytes` as one bulk string.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    bulk_header(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number as a bulk string of its decimal text.
pub fn bulk_number(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0u8; 20];
    bulk(out, decimal(number, &mut digits));
}

/// Appends a number's decimal text alone.
pub fn number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a whole command.
pub fn command<A: AsRef<[u8]>>(out: &mut Vec<u8>, args: &[A]) {
    array_header(out, args.len());
    for arg in args {
        bulk(out, arg.as_ref());
    }
}

fn header(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    let mut digits = [0u8; 20];
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    out.extend_from_slice(decimal(number, &mut digits));
    out.extend_from_slice(b"\r\n");
}

/// The decimal text of `number`, written into the end of `digits`.
fn decimal(number: i64, digits: &mut [u8; 20]) -> &[u8] {
    let mut rest = number.unsigned_abs();
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    &digits[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_number_of_every_sign_and_extreme_is_its_decimal_text() {
        for n in [0, 7, -7, 10, 1234567890, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            bulk_number(&mut out, n);
            let text = n.to_string();
            assert_eq!(out, format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        }
    }

    #[test]
    fn number_of_every_length_is_its_decimal_text() {
        for n in [0, 9, 10, 1234567890, u64::MAX] {
            let mut out = b"x".to_vec();
            number(&mut out, n);
            assert_eq!(out, format!("x{n}").into_bytes());
        }
    }

    #[test]
    fn command_encodes_binary_and_empty_arguments() {
        let mut out = Vec::new();
        command(&mut out, &[&b"SET"[..], b"", b"\r\n"]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$2\r\n\r\n\r\n");
    }
}
