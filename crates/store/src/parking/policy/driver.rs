//! What to do next: the order in which the parts of automatic parking are asked.
//!
//! [`Driver::step`] does a bounded piece of work, says how the parking is, and returns
//! how long it has nothing to do. A step asks: is anything wanted (memory above the
//! marks, or an age set)? does anything hinder it (a budget, a full or failing backing,
//! a busy machine, the rate)? which pages (a plan, from one walk over all slots)? and
//! then moves a hand over the slots for at most a quarter of a second or what the rate
//! allows. The rate waits between such bursts, where the thread can be told to stop,
//! not inside them, where other passes would wait too.
//!
//! A plan holds for one turn of the hand per stage, and not longer than ten seconds,
//! because pages age. A turn that parks nothing is followed by one that takes accessed
//! pages too, and that by a rest of a second, in which writers are not kept waiting.

use super::ages::{Ages, Plan};
use super::condition::Condition;
use super::engine::{Engine, Memory, Sweep, Swept};
use super::marks::Marks;
use super::meter::{Meter, Whose};
use super::quiet::{Load, Quiet};
use super::settings::Policy;
use super::trouble::Trouble;
use super::walks::{Haste, Walks};
use crate::parking::error::ParkError;
use crate::parking::report::Progress;
use crate::slot::Stamp;
use pagefold_page::{PageCount, PageIndex};
use std::ops::ControlFlow;
use std::time::Duration;

/// Pause when there is nothing to do, and the longest burst.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// Upkeep is this often at most, however often writers call.
const TEND_PAUSE: Duration = Duration::from_millis(200);
/// The longest burst below the marks; as long a pause follows.
const GENTLE_BURST: Duration = Duration::from_millis(100);
/// A plan is not followed for longer.
const PLAN_LIFE: Duration = Duration::from_secs(10);
/// Pause after nothing was found that could be parked.
const REST: Duration = Duration::from_secs(1);
/// The same while a writer waits. What there is may be in the hands of other writers, who are about to put it where
/// it can be parked.
const REST_AWAITED: Duration = Duration::from_millis(10);
/// How long that is tried again and again before the writer is refused.
const HOPE: Duration = Duration::from_millis(250);
/// Ticks of age per second, and one of them.
const TICKS_PER_S: u64 = 4;
const AGE_TICK: Duration = Duration::from_millis(1000 / TICKS_PER_S);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Bring memory down; `awaited` says that a write found no room.
    Room { used_bytes: u64, target_bytes: u64, urgent: bool, awaited: bool },
    /// Park what is at least this old.
    Old { age_ticks_min: u16 },
}

impl Want {
    fn is_awaited(self) -> bool {
        matches!(self, Want::Room { awaited: true, .. })
    }

    fn is_urgent(self) -> bool {
        matches!(self, Want::Room { urgent: true, .. })
    }

    fn haste(self) -> Haste {
        match self {
            Want::Old { .. } => Haste::None,
            Want::Room { urgent: false, .. } => Haste::Above,
            Want::Room { urgent: true, .. } => Haste::Urgent,
        }
    }
}

/// A plan that is being followed.
#[derive(Debug, Clone, Copy)]
struct Course {
    plan: Plan,
    /// For `Want::Old`.
    gentle: bool,
    /// How far the hand still moves in this stage.
    left: PageCount,
    expires: Duration,
    parked_pages: u64,
}

/// Condition to be shown, and time until the next step.
type Outcome = (Condition, Duration);

/// Automatic parking of one store.
pub(crate) struct Driver<'a> {
    engine: &'a dyn Engine,
    policy: &'a Policy,
    load: &'a mut dyn FnMut() -> Option<Load>,
    hand: PageIndex,
    course: Option<Course>,
    /// Above the high mark, and not down at the low one yet.
    descending: bool,
    meter: Meter,
    quiet: Quiet,
    trouble: Trouble,
    walks: Walks,
    /// Turns in a row that parked nothing.
    idle_turns: u32,
    /// When a turn last parked nothing; no plan is made for the memory mark for a while.
    rested_at: Duration,
    /// Since when turns have parked nothing with a writer waiting.
    in_vain_since: Option<Duration>,
    /// Nothing reaches this age before that time.
    old_due: (u16, Duration),
    tend_due: Duration,
}

impl<'a> Driver<'a> {
    /// A driver that has seen nothing yet.
    pub(crate) fn new(
        engine: &'a dyn Engine,
        policy: &'a Policy,
        load: &'a mut dyn FnMut() -> Option<Load>,
    ) -> Self {
        let mut meter = Meter::default();
        meter.begin(engine.now(), engine.bytes_written());
        Driver {
            engine,
            policy,
            load,
            hand: PageIndex(0),
            course: None,
            descending: false,
            meter,
            quiet: Quiet::default(),
            trouble: Trouble::default(),
            walks: Walks::default(),
            idle_turns: 0,
            rested_at: Duration::ZERO,
            in_vain_since: None,
            old_due: (0, Duration::ZERO),
            tend_due: Duration::ZERO,
        }
    }

    /// Does what is to be done now, a quarter of a second at most; returns when to come again, at the latest.
    pub(crate) fn step(&mut self) -> Duration {
        let now = self.engine.now();
        self.meter.note(now, self.policy, self.engine.bytes_written(), Whose::Others);
        self.tend(now);
        let (condition, wait) = match self.want() {
            Some(want) => self.serve(now, want),
            None => {
                (self.course, self.idle_turns, self.in_vain_since) = (None, 0, None);
                (Condition::Idle, TICK)
            }
        };
        let now = self.engine.now();
        let is_in_vain = self.in_vain_since.is_some_and(|since| now.saturating_sub(since) >= HOPE);
        // The limit may have been lowered below what a writer that waits already needs.
        let throttle = self.policy.state().throttle();
        let fits = throttle.needed_bytes() <= self.engine.memory().limit_bytes;
        throttle.set_open(condition.is_hopeful() && !is_in_vain && fits);
        self.policy.state().set_condition(condition);
        wait.min(TICK)
    }

    fn tend(&mut self, now: Duration) {
        if now < self.tend_due {
            return;
        }
        self.tend_due = now + TEND_PAUSE;
        let may_write = self.meter.allowance_bytes(self.policy) > 0;
        self.engine.tend(may_write && !self.trouble.is_failing(now) && !self.quiet.is_pausing());
        let written_bytes = self.engine.bytes_written();
        self.meter.note(self.engine.now(), self.policy, written_bytes, Whose::Ours(u64::MAX));
    }

    fn want(&mut self) -> Option<Want> {
        let memory = self.engine.memory();
        let used_bytes = memory.used_bytes;
        let awaited = self.is_room_awaited(memory);
        match Marks::of(memory, self.policy.marks_percent()) {
            Some(marks) if awaited || used_bytes > marks.low_bytes => {
                self.descending |= used_bytes >= marks.high_bytes || awaited;
                if self.descending {
                    let urgent = used_bytes >= marks.urgent_bytes || awaited;
                    // At a limit of a few frames what a write needs may be more than is above the low mark.
                    let needed_bytes = self.policy.state().throttle().needed_bytes();
                    let target_bytes = marks.low_bytes.min(memory.limit_bytes.saturating_sub(needed_bytes));
                    return Some(Want::Room { used_bytes, target_bytes, urgent, awaited });
                }
            }
            _ => self.descending = false,
        }
        let ticks = self.policy.age_s().saturating_mul(TICKS_PER_S).min(u64::from(Stamp::AGE_MAX));
        (ticks > 0).then_some(Want::Old { age_ticks_min: ticks as u16 })
    }

    /// Whether a write found no room and there is none for it now.
    fn is_room_awaited(&self, memory: Memory) -> bool {
        let throttle = self.policy.state().throttle();
        let needed_bytes = throttle.needed_bytes();
        let is_room = memory.used_bytes.saturating_add(needed_bytes) <= memory.limit_bytes;
        if needed_bytes > 0 && is_room {
            throttle.end_need();
        }
        needed_bytes > 0 && !is_room && memory.used_bytes > 0
    }

    fn serve(&mut self, now: Duration, want: Want) -> Outcome {
        if let Some(wait) = self.nothing_before(want).filter(|until| now < *until) {
            return (Condition::Idle, wait - now);
        }
        if let Some(hindrance) = self.hindrance(now, want) {
            return hindrance;
        }
        match self.set_course(now, want) {
            Ok(course) => self.burst(want, course),
            Err(outcome) => outcome,
        }
    }

    /// Until when it is known that there is nothing to do.
    fn nothing_before(&self, want: Want) -> Option<Duration> {
        match want {
            Want::Room { .. } if self.idle_turns < 2 => None,
            Want::Room { awaited: true, .. } => Some(self.rested_at + REST_AWAITED),
            Want::Room { .. } => Some(self.rested_at + REST),
            Want::Old { age_ticks_min } => (self.old_due.0 == age_ticks_min).then_some(self.old_due.1),
        }
    }

    /// What keeps from parking now.
    fn hindrance(&mut self, now: Duration, want: Want) -> Option<Outcome> {
        let engine = self.engine;
        if let Some(outcome) = self.trouble.hinders(now, &|| engine.backing_room_bytes()) {
            return Some(outcome);
        }
        if self.engine.limit_left() == Some(0) {
            return Some((Condition::LimitSpent, TICK));
        }
        if self.meter.is_day_spent(self.policy) {
            return Some((Condition::DailySpent, TICK));
        }
        if want.is_urgent() {
            self.quiet.forget();
        } else if let Some(wait) = self.quiet.wait(now, self.policy.busy_percent(), self.load) {
            return Some((Condition::Busy, wait));
        }
        let wait = self.meter.wait(self.policy);
        (!wait.is_zero()).then_some((Condition::Parking, wait))
    }

    /// The course that is being followed, or a new one; or why there is none now.
    fn set_course(&mut self, now: Duration, want: Want) -> Result<Course, Outcome> {
        let gentle = matches!(want, Want::Old { .. });
        if let Some(course) = self.course.filter(|c| c.gentle == gentle && now < c.expires) {
            return Ok(course);
        }
        let wait = self.walks.wait(now, want.haste());
        if !wait.is_zero() {
            let condition = if gentle { Condition::Idle } else { Condition::Parking };
            return Err((condition, wait));
        }
        let throttle = self.policy.state().throttle();
        let ages = Ages::of(self.engine, &|| !throttle.is_stopping());
        let ended = self.engine.now();
        self.walks.note(now, ended);
        let plan = match want {
            Want::Room { used_bytes, target_bytes, urgent, .. } => {
                ages.plan(used_bytes - target_bytes, urgent || self.idle_turns > 0)
            }
            Want::Old { age_ticks_min } => self.plan_for_old(ended, &ages, age_ticks_min),
        };
        let Some(plan) = plan else {
            if !gentle {
                self.rest(ended, want, 2);
            }
            return Err((Condition::Idle, TICK));
        };
        let (left, expires) = (self.engine.page_count(), ended + PLAN_LIFE);
        Ok(Course { plan, gentle, left, expires, parked_pages: 0 })
    }

    /// All that is old enough; or a note of when the oldest page will be.
    fn plan_for_old(&mut self, now: Duration, ages: &Ages, age_ticks_min: u16) -> Option<Plan> {
        let missing_ticks = u32::from(age_ticks_min.saturating_sub(ages.oldest_ticks()));
        if missing_ticks == 0 {
            return Some(Plan { older: None, age_ticks_min, accessed_too: false });
        }
        self.old_due = (age_ticks_min, now + (AGE_TICK * missing_ticks).max(REST));
        None
    }

    /// Nothing could be parked, so many turns in a row: tries again after a while.
    fn rest(&mut self, now: Duration, want: Want, idle_turns: u32) {
        (self.idle_turns, self.rested_at) = (idle_turns, now);
        self.in_vain_since = match want.is_awaited() && idle_turns > 1 {
            true => self.in_vain_since.or(Some(now)),
            false => None,
        };
    }

    /// Moves the hand as far as one burst goes.
    fn burst(&mut self, want: Want, course: Course) -> Outcome {
        self.policy.state().set_condition(Condition::Parking);
        let began = self.engine.now();
        let swept = self.sweep(want, &course, began);
        let now = self.engine.now();
        let report = swept.as_ref().map(|swept| swept.report.clone()).unwrap_or_default();
        let written_bytes = self.engine.bytes_written();
        self.meter.note(now, self.policy, written_bytes, Whose::Ours(report.written_bytes));
        if report.parked_pages > 0 {
            self.policy.state().throttle().tell_of_room();
        }
        let parked = report.parked_pages > 0;
        let mostly_failed = report.failed_pages >= report.parked_pages;
        let (seen, error) = match swept {
            Ok(Swept { seen, report }) => (seen, report.error),
            Err(error) => (PageCount(0), Some(error)),
        };
        let hindrance = error.and_then(|error| self.note_error(now, error, parked, mostly_failed));
        if !parked {
            self.walks.add(began, now);
        } else if hindrance.is_none() {
            self.trouble.end();
        }
        self.advance(now, want, course, seen, report.parked_pages, hindrance.is_some());
        hindrance.unwrap_or_else(|| match want {
            _ if seen.0 == 0 => (Condition::Parking, TICK),
            Want::Room { .. } => (Condition::Parking, Duration::ZERO),
            Want::Old { .. } => (Condition::Parking, now.saturating_sub(began)),
        })
    }

    fn sweep(&mut self, want: Want, course: &Course, began: Duration) -> Result<Swept, ParkError> {
        let (engine, throttle) = (self.engine, self.policy.state().throttle());
        let allowance_bytes = self.meter.allowance_bytes(self.policy);
        let longest = if course.gentle { GENTLE_BURST } else { TICK };
        let mut parked_pages = 0;
        let mut goal = |progress: &Progress| {
            if progress.parked_pages > parked_pages {
                parked_pages = progress.parked_pages;
                throttle.tell_of_room();
            }
            let is_reached = match want {
                Want::Room { target_bytes, .. } => engine.memory().used_bytes <= target_bytes,
                Want::Old { .. } => false,
            };
            let is_over = is_reached
                || progress.written_bytes >= allowance_bytes
                || engine.now().saturating_sub(began) >= longest
                || throttle.is_stopping();
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let sweep = Sweep {
            from: self.hand,
            span: course.left,
            age_ticks_min: course.plan.older.unwrap_or(course.plan.age_ticks_min),
            urgent: course.plan.accessed_too || want.is_urgent(),
        };
        engine.park_aged(&sweep, &mut goal)
    }

    /// What follows from an error; `None` if one can go on.
    fn note_error(
        &mut self,
        now: Duration,
        error: ParkError,
        parked: bool,
        mostly_failed: bool,
    ) -> Option<Outcome> {
        match error {
            ParkError::Stopped => return None,
            // Most pages went: a bad spot, which the report counts.
            ParkError::Io(_) if !mostly_failed => return None,
            ParkError::Io(error) => self.trouble.failing(now, error, parked),
            ParkError::Full => self.trouble.full(now, self.engine.backing_room_bytes(), parked),
            ParkError::Budget => return Some((Condition::LimitSpent, TICK)),
            ParkError::NoBacking | ParkError::Selection(_) => return Some((Condition::Off, TICK)),
        }
        let engine = self.engine;
        self.trouble.hinders(now, &|| engine.backing_room_bytes())
    }

    /// Notes how far the hand came, and what of the course is left.
    fn advance(
        &mut self,
        now: Duration,
        want: Want,
        course: Course,
        seen: PageCount,
        parked_pages: u64,
        failed: bool,
    ) {
        let page_count = self.engine.page_count().0.max(1);
        self.hand = PageIndex((self.hand.0 + seen.0 % page_count) % page_count);
        let left = PageCount(course.left.0.saturating_sub(seen.0));
        let mut course = Course { left, parked_pages: course.parked_pages + parked_pages, ..course };
        self.course = None;
        if parked_pages > 0 {
            self.rest(now, want, 0);
        }
        if left.0 > 0 {
            self.course = Some(course);
        } else if course.plan.older.take().is_some() {
            self.course = Some(Course { left: self.engine.page_count(), ..course });
        } else if course.gentle {
            // Pages that lost their mark in this turn are not to go in the same second.
            self.old_due = (course.plan.age_ticks_min, now + REST);
        } else if course.parked_pages == 0 && !failed {
            self.rest(now, want, self.idle_turns.saturating_add(1));
        }
    }
}
