//! Values of keys that take one word or a list of words.
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::Deserialize;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A word, or a list of words.
pub struct Many<T>(pub Vec<T>);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ManyVisitor(PhantomData))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: FromStr<Err: fmt::Display>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word or a list of words")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Many<T>, E> {
        Ok(Many(vec![word.parse().map_err(E::custom)?]))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Many<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Many<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(Many(some)) = list.next_element::<Many<T>>()? {
            all.extend(some);
        }
        if all.is_empty() {
            return Err(A::Error::custom(
                "an empty list matches nothing; leave the key out to match everything",
            ));
        }
        Ok(Many(all))
    }
}
