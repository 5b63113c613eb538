//! The inode numbers that `stat` shows, to find those that occur twice.

use pagefold_image::account::{Account, TableAccount};
use std::collections::HashSet;

/// The numbers so far.
pub(super) struct Numbers {
    numbers: HashSet<u32>,
    table: TableAccount,
    is_over_budget: bool,
}

impl Numbers {
    pub(super) fn new(account: &Account) -> Self {
        Numbers { numbers: HashSet::new(), table: TableAccount::new::<u32>(account), is_over_budget: false }
    }

    /// Whether a number could not be recorded for want of memory.
    pub(super) fn is_over_budget(&self) -> bool {
        self.is_over_budget
    }

    /// Records a number; false if another inode has it.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        if self.numbers.contains(&number) {
            return false;
        }
        match self.table.reserve_one(self.numbers.len(), self.numbers.capacity()) {
            true => self.numbers.insert(number),
            false => {
                self.is_over_budget = true;
                true
            }
        }
    }
}
