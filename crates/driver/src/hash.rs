//! Hash tables whose order may matter. In tests the order is the same in every run, so that the
//! simulation (`crate::simulation`) can be repeated.

#[cfg(not(any(test, fuzzing, feature = "testing")))]
mod state {
    pub type State = std::hash::RandomState;
    pub type Fast = foldhash::fast::RandomState;
}
#[cfg(any(test, fuzzing, feature = "testing"))]
mod state {
    pub type State = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
    pub type Fast = foldhash::fast::FixedState;
}

pub type HashMap<K, V> = std::collections::HashMap<K, V, state::State>;
pub type HashSet<T> = std::collections::HashSet<T, state::State>;
/// Hash map with a quicker hash.
pub type FastMap<K, V> = std::collections::HashMap<K, V, state::Fast>;
