//! The disks of a zram shell, whose devices follow the disks that there are.

use super::devices::{self, DeviceList};
use super::namespace::Message;
use pagefold_zram::disks::{ClassReport, Disks, Errno};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often to look for disks that other commands have created or removed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a request waits until the devices of the shell follow.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);

/// Disks whose devices are in the shell when a request that creates or removes one is answered.
pub struct FollowedDisks<D> {
    disks: Arc<D>,
    messages: Sender<Message>,
    /// The numbers of the disks that the shell has created. The lock is held from the listing of disks until the shell
    /// has their devices. Otherwise an older list of one thread could undo what a newer list of another has done.
    created: Mutex<BTreeSet<u32>>,
}

impl<D: Disks> FollowedDisks<D> {
    /// Follows `disks` by messages to the thread of the namespace.
    pub fn new(disks: Arc<D>, messages: Sender<Message>) -> Self {
        FollowedDisks { disks, messages, created: Mutex::default() }
    }

    /// Lists the disks that have a device now. An error counts as no disk.
    pub fn list(&self) -> DeviceList {
        devices::list(&*self.disks).unwrap_or_default()
    }

    /// Makes the devices of the shell follow the disks every second, until the shell has ended.
    pub fn keep_looking(&self) {
        loop {
            std::thread::sleep(LOOK_INTERVAL);
            if !self.follow(&mut self.lock()) {
                return;
            }
        }
    }

    /// The numbers of the disks that requests in the shell have created and nobody has removed.
    pub fn created(&self) -> BTreeSet<u32> {
        let mut created = self.lock();
        self.forget_removed(&mut created);
        created.clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the devices of the shell follow the disks. Returns whether the shell still runs.
    fn follow(&self, created: &mut BTreeSet<u32>) -> bool {
        let Some(list) = self.forget_removed(created) else { return true };
        let (done, is_done) = sync_channel(1);
        let sent = self.messages.send(Message::Follow(list, done)).is_ok();
        // If it takes longer, the devices appear later.
        let _ = is_done.recv_timeout(FOLLOW_TIMEOUT);
        sent
    }

    /// Lists the disks, and removes from `created` the numbers of those that are gone. Other commands may use
    /// these again.
    fn forget_removed(&self, created: &mut BTreeSet<u32>) -> Option<DeviceList> {
        let list = devices::list(&*self.disks)?;
        created.retain(|number| list.contains_key(number));
        Some(list)
    }
}

impl<D: Disks> Disks for FollowedDisks<D> {
    fn numbers(&self) -> Result<Vec<u32>, Errno> {
        self.disks.numbers()
    }

    fn device(&self, number: u32) -> Result<PathBuf, Errno> {
        self.disks.device(number)
    }

    fn read(&self, number: u32, attribute: &str) -> Result<String, Errno> {
        self.disks.read(number, attribute)
    }

    fn write(&self, number: u32, attribute: &str, text: &str) -> Result<(), Errno> {
        self.disks.write(number, attribute, text)
    }

    fn block_state(&self, number: u32, first: u64) -> Result<(String, Option<u64>), Errno> {
        self.disks.block_state(number, first)
    }

    fn classes(&self, number: u32) -> Result<Vec<ClassReport>, Errno> {
        self.disks.classes(number)
    }

    fn hot_add(&self) -> Result<u32, Errno> {
        // Under the lock, so that no list made before is compared with the number.
        let mut created = self.lock();
        let number = self.disks.hot_add()?;
        created.insert(number);
        self.follow(&mut created);
        Ok(number)
    }

    fn hot_remove(&self, number: u32) -> Result<(), Errno> {
        self.disks.hot_remove(number)?;
        self.follow(&mut self.lock());
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    /// Disks in memory. Counts how often they were listed.
    #[derive(Default)]
    struct FakeDisks {
        lists: AtomicU32,
        present: Mutex<Vec<u32>>,
    }

    impl Disks for FakeDisks {
        fn numbers(&self) -> Result<Vec<u32>, Errno> {
            self.lists.fetch_add(1, Ordering::SeqCst);
            Ok(self.present.lock().unwrap().clone())
        }

        fn device(&self, number: u32) -> Result<PathBuf, Errno> {
            Ok(format!("/dev/loop{number}").into())
        }

        fn read(&self, _: u32, _: &str) -> Result<String, Errno> {
            Err(Errno(libc::ENODEV))
        }

        fn write(&self, _: u32, _: &str, _: &str) -> Result<(), Errno> {
            Err(Errno(libc::ENODEV))
        }

        fn block_state(&self, _: u32, _: u64) -> Result<(String, Option<u64>), Errno> {
            Err(Errno(libc::ENODEV))
        }

        fn classes(&self, _: u32) -> Result<Vec<ClassReport>, Errno> {
            Err(Errno(libc::ENODEV))
        }

        fn hot_add(&self) -> Result<u32, Errno> {
            let mut present = self.present.lock().unwrap();
            let number = (0..).find(|n| !present.contains(n)).unwrap();
            present.push(number);
            Ok(number)
        }

        fn hot_remove(&self, number: u32) -> Result<(), Errno> {
            self.present.lock().unwrap().retain(|n| *n != number);
            Ok(())
        }
    }

    /// Replies to each message late. Returns how often the disks had been listed at each reply, and the last list.
    fn reply_late(disks: &FakeDisks, received: std::sync::mpsc::Receiver<Message>) -> (Vec<u32>, DeviceList) {
        let (mut lists, mut last) = (Vec::new(), DeviceList::new());
        while let Ok(Message::Follow(list, done)) = received.recv() {
            std::thread::sleep(Duration::from_millis(30));
            lists.push(disks.lists.load(Ordering::SeqCst));
            last = list;
            let _ = done.try_send(());
        }
        (lists, last)
    }

    #[test]
    fn disks_are_not_listed_again_before_the_shell_has_followed_the_last_list() {
        const THREADS: u32 = 5;
        let (messages, received) = channel();
        let disks = Arc::new(FakeDisks::default());
        let followed = FollowedDisks::new(disks.clone(), messages);
        let (lists, last) = std::thread::scope(|scope| {
            let replies = scope.spawn(|| reply_late(&disks, received));
            let adds: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| followed.hot_add().unwrap())).collect();
            for add in adds {
                add.join().unwrap();
            }
            followed.messages.send(Message::End).unwrap();
            replies.join().unwrap()
        });
        assert_eq!(lists, (1..=THREADS).collect::<Vec<_>>());
        assert_eq!(last.into_keys().collect::<Vec<_>>(), (0..THREADS).collect::<Vec<_>>());
    }

    #[test]
    fn only_disks_that_the_shell_created_and_that_are_left_count_as_created() {
        let (messages, received) = channel();
        drop(received);
        let disks = Arc::new(FakeDisks::default());
        let followed = FollowedDisks::new(disks.clone(), messages);
        disks.hot_add().unwrap();
        let added: Vec<_> = (0..4).map(|_| followed.hot_add().unwrap()).collect();
        assert_eq!(added, [1, 2, 3, 4]);
        followed.hot_remove(1).unwrap();
        disks.hot_remove(2).unwrap();
        assert_eq!(followed.created(), [3, 4].into());
        // The next disk of another command gets the number of a removed one.
        disks.hot_add().unwrap();
        assert_eq!(followed.created(), [3, 4].into());
        assert_eq!(disks.numbers().unwrap().len(), 4);
    }
}
