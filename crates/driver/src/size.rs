//! Byte counts as people write them: `65536`, `64K`, `4MiB`, `1.5 GB`.

use std::str::FromStr;

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

/// A count of bytes. One-letter and `iB` suffixes are powers of 1024, `kB`, `MB`, `GB` and `TB` powers
/// of 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let refused = || format!("'{text}' is no byte count; write one like 65536, 64K, 4MiB or 1GB");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?.1;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(refused);
        }
        let value = number.parse::<f64>().map_err(|_| refused())? * factor as f64;
        if !(0.0..=1e18).contains(&value) {
            return Err(refused());
        }
        Ok(Bytes(value.round() as u64))
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unit, factor) = match self.0 {
            0 => ("", 1),
            n if n % (1 << 40) == 0 => ("TiB", 1 << 40),
            n if n % (1 << 30) == 0 => ("GiB", 1 << 30),
            n if n % (1 << 20) == 0 => ("MiB", 1 << 20),
            n if n % (1 << 10) == 0 => ("KiB", 1 << 10),
            _ => ("", 1),
        };
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a byte count like 65536, \"64K\", \"4MiB\" or \"1GB\"")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Bytes, E> {
                Ok(Bytes(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Bytes, E> {
                u64::try_from(value).map(Bytes).map_err(|_| E::custom(format!("{value} is negative")))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Bytes, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65536),
            ("64K", 65536),
            ("64k", 65536),
            ("4MiB", 4 << 20),
            ("4 M", 4 << 20),
            ("1GB", 1_000_000_000),
            ("1.5GiB", 3 << 29),
            ("2t", 2 << 40),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_by_name() {
        for text in ["", "K", "-1", "4X", "1..5M", "99999999999999999999", "20000000T"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
    }

    #[test]
    fn prints_in_the_largest_whole_unit() {
        assert_eq!(Bytes(4 << 20).to_string(), "4MiB");
        assert_eq!(Bytes(1500).to_string(), "1500");
        assert_eq!(Bytes(0).to_string(), "0");
    }
}
