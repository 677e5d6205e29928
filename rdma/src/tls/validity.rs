//! Until when certificates are good. The libraries that check it do not say it.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// When the first of the certificates in a PEM file expires, in seconds since 1970; `None` if that cannot be read.
pub fn certificates_end(file: &Path) -> Option<i64> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).ok()?.collect();
    let ends =
        all.ok()?.iter().map(|certificate| end(certificate)).collect::<Option<Vec<i64>>>()?;
    ends.into_iter().min()
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERAL_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// Of X.509: the version, which the oldest certificates do not have.
const VERSION: u8 = 0xa0;

/// `notAfter` of a certificate in DER.
fn end(der: &[u8]) -> Option<i64> {
    let (certificate, _) = expect(SEQUENCE, der)?;
    let (mut fields, _) = expect(SEQUENCE, certificate)?;
    if let (VERSION, _, rest) = element(fields)? {
        fields = rest;
    }
    // The serial number, the algorithm and the issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, fields) = expect(tag, fields)?;
    }
    let (validity, _) = expect(SEQUENCE, fields)?;
    let (_, _, after_begin) = element(validity)?;
    match element(after_begin)? {
        (UTC_TIME, text, _) => {
            let year = number(text.get(..2)?)?;
            seconds(if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        (GENERAL_TIME, text, _) => seconds(number(text.get(..4)?)?, text.get(4..)?),
        _ => None,
    }
}

/// Content of the first element, and what follows it.
fn expect(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Tag and content of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?
        .parse()
        .ok()
}

/// Of the year and `MMDDhhmmssZ`, since 1970.
fn seconds(year: i64, rest: &[u8]) -> Option<i64> {
    let ([pairs @ .., b'Z'], 11) = (rest, rest.len()) else { return None };
    let pairs: Vec<i64> = pairs.chunks(2).map(number).collect::<Option<_>>()?;
    let [month, day, hour, minute, second] = pairs[..] else { return None };
    // A year that begins in March ends with the day that leap years have more.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    const TO_1970: i64 = 719_468;
    Some(((days - TO_1970) * 24 + hour) * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_from_1970() {
        for (year, rest, wanted) in [
            (1970, "0101000000Z", 0),
            (2000, "0229235959Z", 951_868_799),
            (2024, "0301000000Z", 1_709_251_200),
            (2100, "0301000000Z", 4_107_542_400),
            (1969, "1231235959Z", -1),
        ] {
            assert_eq!(seconds(year, rest.as_bytes()), Some(wanted), "{year}{rest}");
        }
        for wrong in ["", "0101000000", "010100000Z", "01010000+0Z", "010100000000Z"] {
            assert_eq!(seconds(1970, wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_first_to_expire_of_a_file_counts_in_either_form_of_time() {
        let file = std::env::temp_dir().join(format!("baton-validity-{}", std::process::id()));
        let certificate = |year: i32| {
            let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 3, 1);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        };
        for (years, wanted) in [
            (&[2031][..], Some(1_930_089_600)),
            (&[2100], Some(4_107_542_400)),
            (&[2100, 2031, 2040], Some(1_930_089_600)),
            (&[], None),
        ] {
            let text: String = years.iter().map(|&year| certificate(year)).collect();
            std::fs::write(&file, text).unwrap();
            assert_eq!(certificates_end(&file), wanted, "{years:?}");
        }
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n")
            .unwrap();
        assert_eq!(certificates_end(&file), None, "a number is no certificate");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(certificates_end(&file), None);
    }

    #[test]
    fn a_length_beyond_the_end_is_no_element() {
        for bytes in [
            &[][..],
            &[0x30],
            &[0x30, 2, 0],
            &[0x30, 0x80],
            &[0x30, 0x82, 1],
            &[0x30, 0x84, 255, 255, 255, 255],
        ] {
            assert_eq!(element(bytes), None, "{bytes:?}");
        }
        assert_eq!(element(&[0x30, 0x81, 1, 7, 9]), Some((0x30, &[7][..], &[9][..])));
    }
}
