//! What a tool remembers of the image that it walks, counted in the image's budget.
//!
//! Which inodes were met, the names of a directory in disorder, files with several names: an image decides how much of that
//! there is. So it is counted: the first [`OWN_BYTES`] are the tool's, which every budget must do without, and more is
//! charged to the budget in steps. The reserve of readers stays, so reading goes on; the cache gives way.
//!
//! What to do without when there is no room is the caller's affair.

use pagefold_backing::{Budget, Charge};
use std::sync::{Arc, Mutex, PoisonError};

/// Not charged to the budget, so that small trees are walked in the least of budgets.
const OWN_BYTES: u64 = 1 << 20;
/// The budget is charged so much at once.
const STEP_BYTES: u64 = 256 << 10;

/// What one tool has taken. Clones share it; the budget gets all of it back with the last of them.
#[derive(Clone)]
pub(crate) struct Account(Arc<Shared>);

struct Shared {
    budget: Budget,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    used_bytes: u64,
    charged_bytes: u64,
    charges: Vec<Charge>,
}

impl Account {
    /// Nothing taken yet.
    pub(crate) fn new(budget: &Budget) -> Self {
        Account(Arc::new(Shared { budget: budget.clone(), taken: Mutex::default() }))
    }

    /// Takes `len_bytes`; false if there is no room for them.
    pub(crate) fn take(&self, len_bytes: u64) -> bool {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = taken.used_bytes.saturating_add(len_bytes);
        let missing = wanted.saturating_sub(OWN_BYTES + taken.charged_bytes);
        if missing > 0 {
            let (step, exact) = (missing.next_multiple_of(STEP_BYTES), missing);
            let charge = |bytes| Some((bytes, self.0.budget.try_charge(bytes)?));
            let Some((bytes, charge)) = charge(step).or_else(|| charge(exact)) else { return false };
            taken.charged_bytes += bytes;
            taken.charges.push(charge);
        }
        taken.used_bytes = wanted;
        true
    }

    /// Gives back what was taken; it is used again before more is charged.
    pub(crate) fn give_back(&self, len_bytes: u64) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.used_bytes = taken.used_bytes.saturating_sub(len_bytes);
    }
}

/// Counts the memory of a hash table that grows, of the standard library.
pub(crate) struct TableRoom {
    account: Account,
    entry_bytes: u64,
    buckets: u64,
}

impl TableRoom {
    /// Of an empty table of `T`.
    pub(crate) fn of<T>(account: &Account) -> Self {
        // A byte of control for each entry.
        TableRoom { account: account.clone(), entry_bytes: size_of::<T>() as u64 + 1, buckets: 0 }
    }

    /// Whether there is room for one more entry; asked before it is put in. `len` and `capacity` are the table's.
    pub(crate) fn for_one_more(&mut self, len: usize, capacity: usize) -> bool {
        // A table that is at most half full of entries, the rest being traces of removed ones, is cleaned and does not grow.
        let full = self.buckets / 8 * 7;
        if len < capacity || (self.buckets > 0 && len as u64 + 1 <= full / 2) {
            return true;
        }
        let buckets = (self.buckets * 2).max(16);
        // While the entries move, both tables are there.
        if !self.account.take(buckets * self.entry_bytes) {
            return false;
        }
        self.account.give_back(self.buckets * self.entry_bytes);
        self.buckets = buckets;
        true
    }
}

impl Drop for TableRoom {
    fn drop(&mut self) {
        self.account.give_back(self.buckets * self.entry_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_is_taken_is_charged_in_steps_and_comes_back() {
        let budget = Budget::new(4 << 20, 1 << 20).unwrap();
        let account = Account::new(&budget);
        assert!(account.take(OWN_BYTES) && budget.stats().in_use_bytes == 0);
        assert!(account.take(1) && budget.stats().in_use_bytes == STEP_BYTES);
        // All but the reserve.
        assert!(account.take((3 << 20) - 1) && !account.take(1));
        account.give_back(10);
        assert!(account.take(10) && !account.take(1));
        assert_eq!(budget.stats().in_use_bytes, 3 << 20);
        drop(account);
        assert_eq!(budget.stats().in_use_bytes, 0);
    }

    #[test]
    fn a_table_is_counted_before_it_grows() {
        let budget = Budget::new(2 << 20, 1 << 20).unwrap();
        let account = Account::new(&budget);
        let (mut table, mut room) = (HashSet::new(), TableRoom::of::<u64>(&account));
        let mut n = 0u64;
        while room.for_one_more(table.len(), table.capacity()) {
            table.insert(n);
            n += 1;
            assert!(table.capacity() as u64 <= room.buckets, "{} of {}", table.capacity(), room.buckets);
        }
        // 2 MiB in all, of which an old table of a third and a new one of two thirds have room.
        assert!((50_000..=230_000).contains(&n), "{n}");
    }
}
