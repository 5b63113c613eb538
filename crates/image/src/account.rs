//! Charges the bookkeeping of a tool that walks an image to the image's memory budget.
//!
//! The image decides how much a walk has to remember: the inodes that it visited, the names of an unsorted directory,
//! the files with several names. The first 1 MiB of a tool are free, so that small trees can be walked in
//! the smallest budget; the rest is charged to the budget in steps. A charge evicts cached clusters, but never takes
//! the reserve of readers, so reading still makes progress.
//!
//! At the limit, [`Account::try_charge`] returns false. The caller decides what it leaves out, and reports that.
//!
//! All threads of a tool may share an [`Account`]. Its lock is held for arithmetic and [`Budget::try_charge`], which
//! does not wait.

use crate::budget::{Budget, Charge};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a tool may use without charging the budget.
const UNCHARGED_BYTES: u64 = 1 << 20;
/// The budget is charged in multiples of this, if it has room for them.
const CHARGE_STEP_BYTES: u64 = 256 << 10;

/// The memory use of one tool. Clones share it; dropping the last clone returns all charges to the budget.
#[derive(Clone)]
pub struct Account(Arc<Shared>);

struct Shared {
    budget: Budget,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    used_bytes: u64,
    charged_bytes: u64,
    charges: Vec<Charge>,
}

impl Account {
    /// An account without any use.
    pub fn new(budget: &Budget) -> Self {
        Account(Arc::new(Shared { budget: budget.clone(), usage: Mutex::default() }))
    }

    /// Counts `len_bytes` as used, charging the budget if needed; false, with nothing counted, if the budget has no
    /// room.
    pub fn try_charge(&self, len_bytes: u64) -> bool {
        let mut usage = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = usage.used_bytes.saturating_add(len_bytes);
        let missing = wanted.saturating_sub(UNCHARGED_BYTES + usage.charged_bytes);
        if missing > 0 {
            let (step, exact) = (missing.next_multiple_of(CHARGE_STEP_BYTES), missing);
            let charge = |bytes| Some((bytes, self.0.budget.try_charge(bytes)?));
            let Some((bytes, charge)) = charge(step).or_else(|| charge(exact)) else { return false };
            usage.charged_bytes += bytes;
            usage.charges.push(charge);
        }
        usage.used_bytes = wanted;
        true
    }

    /// Counts `len_bytes` as unused. The charge stays, and later calls of [`try_charge`](Self::try_charge) use it
    /// first.
    pub fn uncharge(&self, len_bytes: u64) {
        let mut usage = self.0.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.used_bytes = usage.used_bytes.saturating_sub(len_bytes);
    }
}

/// Charges the memory of one growing hash table of the standard library to an [`Account`].
pub struct TableAccount {
    account: Account,
    entry_bytes: u64,
    buckets: u64,
}

impl TableAccount {
    /// For an empty table with entries of type `T`.
    pub fn new<T>(account: &Account) -> Self {
        // The table has a control byte for each entry.
        TableAccount { account: account.clone(), entry_bytes: size_of::<T>() as u64 + 1, buckets: 0 }
    }

    /// Charges the growth that inserting one more entry may cause; false if the budget has no room for it. Call it
    /// before inserting, with the table's `len` and `capacity`.
    pub fn reserve_one(&mut self, len: usize, capacity: usize) -> bool {
        // A table that is at most half full of entries, the rest being tombstones, is rehashed in place and does not
        // grow.
        let full = self.buckets / 8 * 7;
        if len < capacity || (self.buckets > 0 && (len as u64) < full / 2) {
            return true;
        }
        let buckets = (self.buckets * 2).max(16);
        // Both tables exist while the entries are moved.
        if !self.account.try_charge(buckets * self.entry_bytes) {
            return false;
        }
        self.account.uncharge(self.buckets * self.entry_bytes);
        self.buckets = buckets;
        true
    }
}

impl Drop for TableAccount {
    fn drop(&mut self) {
        self.account.uncharge(self.buckets * self.entry_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn use_is_charged_in_steps_and_returned_to_the_budget_on_drop() {
        let budget = Budget::new(4 << 20, 1 << 20).unwrap();
        let account = Account::new(&budget);
        assert!(account.try_charge(UNCHARGED_BYTES) && budget.stats().in_use_bytes == 0);
        assert!(account.try_charge(1) && budget.stats().in_use_bytes == CHARGE_STEP_BYTES);
        // Everything but the reserve of readers can be charged.
        assert!(account.try_charge((3 << 20) - 1) && !account.try_charge(1));
        account.uncharge(10);
        assert!(account.try_charge(10) && !account.try_charge(1));
        assert_eq!(budget.stats().in_use_bytes, 3 << 20);
        drop(account);
        assert_eq!(budget.stats().in_use_bytes, 0);
    }

    #[test]
    fn a_table_is_charged_before_it_grows() {
        let budget = Budget::new(2 << 20, 1 << 20).unwrap();
        let account = Account::new(&budget);
        let (mut table, mut table_account) = (HashSet::new(), TableAccount::new::<u64>(&account));
        let mut n = 0u64;
        while table_account.reserve_one(table.len(), table.capacity()) {
            table.insert(n);
            n += 1;
            assert!(
                table.capacity() as u64 <= table_account.buckets,
                "{} of {}",
                table.capacity(),
                table_account.buckets
            );
        }
        // 2 MiB in all, which hold an old table of a third and a new one of two thirds of that.
        assert!((50_000..=230_000).contains(&n), "{n}");
    }
}
