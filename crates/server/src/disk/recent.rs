//! [`Cache`]: the few values that were used last.
//!
//! It searches all of them, so it is for some tens. It has no lock.

use std::sync::Arc;

/// The values that were used last.
pub struct Cache<K, V> {
    most: usize,
    /// The one that was used last at the end.
    entries: Vec<(K, Arc<V>)>,
}

impl<K: PartialEq, V> Cache<K, V> {
    /// An empty one, for so many values.
    pub fn new(most: usize) -> Self {
        Cache { most, entries: Vec::new() }
    }

    /// A value, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<Arc<V>> {
        let at = self.entries.iter().rposition(|(other, _)| other == key)?;
        // Mostly the last one is used again.
        if at + 1 < self.entries.len() {
            let entry = self.entries.remove(at);
            self.entries.push(entry);
        }
        self.entries.last().map(|(_, value)| value.clone())
    }

    /// Adds a value; the one that was not used for the longest time makes room for it.
    pub fn add(&mut self, key: K, value: V) -> Arc<V> {
        if self.entries.len() >= self.most {
            self.entries.remove(0);
        }
        let value = Arc::new(value);
        self.entries.push((key, value.clone()));
        value
    }
}
