//! One step of automatic writeback.
//!
//! [`Driver::step`] does a bounded amount of work, publishes the condition, and returns how long the thread may
//! sleep. It decides in this order:
//!
//! 1. Is there a goal: memory above the marks, or a configured age?
//! 2. Is writeback blocked: by a budget, a full or failing backing, a busy machine, the rate?
//! 3. Which pages: a plan, made by one walk over all slots.
//!
//! Then it moves a hand over the slots (clock algorithm) and writes back pages that fit the plan, for at most a
//! quarter of a second or as many bytes as the rate allows: a burst. The thread waits for the rate between bursts,
//! where it can be stopped, and not inside them, where it would hold the lock of passes and delay others.
//!
//! A plan is valid for one revolution of the hand per stage, and for at most ten seconds, because pages age. After a
//! revolution that wrote back nothing, the next one includes accessed pages. If it writes back nothing either, a pause
//! follows: a second, or 10 ms while a writer waits. The writer is refused when such revolutions have gone on for a
//! quarter of a second. (The 30 seconds of the throttle are for a medium that hangs inside a round.)

use super::backoff::{Load, PressureGate, RetryBackoff, ScanPacer};
use super::choose::{AgeHistogram, Goal, Marks, Plan};
use super::quota::{Meter, WrittenBy};
use super::settings::{Condition, Policy};
use super::target::{Memory, Sweep, SweepResult, WritebackTarget};
use crate::error::WritebackError;
use crate::report::Progress;
use crate::slot::AccessTime;
use pagefold_page::{PageCount, PageIndex};
use std::ops::ControlFlow;
use std::time::Duration;

/// The pause between steps when there is nothing to do, and the longest burst.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// The shortest time between two runs of maintenance, however often writers wake the thread.
const MAINTENANCE_PAUSE: Duration = Duration::from_millis(200);
/// The longest burst below the marks; a pause of the same length follows.
const OLD_PAGES_BURST: Duration = Duration::from_millis(100);
/// The longest time for which a plan is valid.
const PLAN_LIFETIME: Duration = Duration::from_secs(10);
/// The pause after two revolutions that wrote back nothing.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// The same pause while a writer waits: other writers may be about to publish objects that can be written back.
const IDLE_PAUSE_AWAITED: Duration = Duration::from_millis(10);
/// How long such revolutions are repeated before the waiting writer is refused.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_millis(250);
/// Ticks of age per second, and the length of one.
const TICKS_PER_S: u64 = 4;
const AGE_TICK: Duration = Duration::from_millis(1000 / TICKS_PER_S);

/// The plan in progress.
#[derive(Debug, Clone, Copy)]
struct SweepState {
    plan: Plan,
    /// Made for `Goal::WriteOldPages`.
    for_old: bool,
    /// Slots that the hand has still to pass in this stage.
    left: PageCount,
    expires: Duration,
    written_back_pages: u64,
}

/// The condition to publish, and the time until the next step.
type StepResult = (Condition, Duration);

/// The state of automatic writeback of one store; owned by the writeback thread.
pub(crate) struct Driver<'a> {
    target: &'a dyn WritebackTarget,
    policy: &'a Policy,
    load: &'a mut dyn FnMut() -> Option<Load>,
    hand: PageIndex,
    sweep_state: Option<SweepState>,
    /// Memory was above the high mark and has not reached the low mark yet (hysteresis).
    draining: bool,
    meter: Meter,
    pressure_gate: PressureGate,
    backoff: RetryBackoff,
    scan_pacer: ScanPacer,
    /// Consecutive revolutions of the hand that wrote back nothing.
    idle_revolutions: u32,
    /// The end of the last such revolution. No plan is made to free memory for a while after it.
    idle_since: Duration,
    /// The end of the first of such revolutions while a writer waits.
    no_progress_since: Option<Duration>,
    /// An age, and the time before which no page reaches it.
    next_old_due: (u16, Duration),
    maintenance_due: Duration,
}

impl<'a> Driver<'a> {
    /// Creates a driver.
    pub(crate) fn new(
        target: &'a dyn WritebackTarget,
        policy: &'a Policy,
        load: &'a mut dyn FnMut() -> Option<Load>,
    ) -> Self {
        let mut meter = Meter::default();
        meter.begin(target.now(), target.bytes_written());
        Driver {
            target,
            policy,
            load,
            hand: PageIndex(0),
            sweep_state: None,
            draining: false,
            meter,
            pressure_gate: PressureGate::default(),
            backoff: RetryBackoff::default(),
            scan_pacer: ScanPacer::default(),
            idle_revolutions: 0,
            idle_since: Duration::ZERO,
            no_progress_since: None,
            next_old_due: (0, Duration::ZERO),
            maintenance_due: Duration::ZERO,
        }
    }

    /// Does at most a quarter of a second of work. Returns the time until the next step; the thread may call it
    /// earlier.
    pub(crate) fn step(&mut self) -> Duration {
        let now = self.target.now();
        self.meter.note(now, self.policy, self.target.bytes_written(), WrittenBy::Others);
        self.run_maintenance(now);
        let (condition, wait) = match self.goal() {
            Some(goal) => self.pursue(now, goal),
            None => {
                (self.sweep_state, self.idle_revolutions, self.no_progress_since) = (None, 0, None);
                (Condition::Idle, TICK)
            }
        };
        let now = self.target.now();
        let is_stuck =
            self.no_progress_since.is_some_and(|since| now.saturating_sub(since) >= NO_PROGRESS_TIMEOUT);
        // The limit may have been lowered below the need of a waiting writer.
        let throttle = self.policy.throttle();
        let fits = throttle.needed_bytes() <= self.target.memory().limit_bytes;
        throttle.end_round(condition.can_free_memory() && !is_stuck && fits);
        self.policy.set_condition(condition);
        wait.min(TICK)
    }

    fn run_maintenance(&mut self, now: Duration) {
        if now < self.maintenance_due {
            return;
        }
        self.maintenance_due = now + MAINTENANCE_PAUSE;
        let may_write = self.meter.allowance_bytes(self.policy) > 0;
        self.target
            .run_maintenance(may_write && !self.backoff.is_failing(now) && !self.pressure_gate.is_paused());
        let written_bytes = self.target.bytes_written();
        self.meter.note(self.target.now(), self.policy, written_bytes, WrittenBy::Driver(u64::MAX));
    }

    fn goal(&mut self) -> Option<Goal> {
        let memory = self.target.memory();
        let used_bytes = memory.used_bytes;
        let awaited = self.is_room_awaited(memory);
        match Marks::of(memory, self.policy.marks_percent()) {
            Some(marks) if awaited || used_bytes > marks.low_bytes => {
                self.draining |= used_bytes >= marks.high_bytes || awaited;
                if self.draining {
                    let urgent = used_bytes >= marks.urgent_bytes || awaited;
                    // At a limit of a few frames, a write may need more than the distance from the low mark to the
                    // limit.
                    let needed_bytes = self.policy.throttle().needed_bytes();
                    let target_bytes = marks.low_bytes.min(memory.limit_bytes.saturating_sub(needed_bytes));
                    return Some(Goal::FreeMemory { used_bytes, target_bytes, urgent, awaited });
                }
            }
            _ => self.draining = false,
        }
        let ticks = self.policy.age_s.load().saturating_mul(TICKS_PER_S).min(u64::from(AccessTime::AGE_MAX));
        (ticks > 0).then_some(Goal::WriteOldPages { age_ticks_min: ticks as u16 })
    }

    /// Whether a write found too little memory below the limit, and there is still too little.
    fn is_room_awaited(&self, memory: Memory) -> bool {
        let throttle = self.policy.throttle();
        let needed_bytes = throttle.needed_bytes();
        let is_room = memory.used_bytes.saturating_add(needed_bytes) <= memory.limit_bytes;
        if needed_bytes > 0 && is_room {
            throttle.clear_need();
        }
        needed_bytes > 0 && !is_room && memory.used_bytes > 0
    }

    fn pursue(&mut self, now: Duration, goal: Goal) -> StepResult {
        if let Some(wait) = self.idle_until(goal).filter(|until| now < *until) {
            return (Condition::Idle, wait - now);
        }
        if let Some(blocking_condition) = self.blocking_condition(now, goal) {
            return blocking_condition;
        }
        match self.continue_or_plan(now, goal) {
            Ok(sweep_state) => self.burst(goal, sweep_state),
            Err(outcome) => outcome,
        }
    }

    /// The time before which there is nothing to do for the goal, if it is known.
    fn idle_until(&self, goal: Goal) -> Option<Duration> {
        match goal {
            Goal::FreeMemory { .. } if self.idle_revolutions < 2 => None,
            Goal::FreeMemory { awaited: true, .. } => Some(self.idle_since + IDLE_PAUSE_AWAITED),
            Goal::FreeMemory { .. } => Some(self.idle_since + IDLE_PAUSE),
            Goal::WriteOldPages { age_ticks_min } => {
                (self.next_old_due.0 == age_ticks_min).then_some(self.next_old_due.1)
            }
        }
    }

    /// The condition that blocks writeback now, and the time to wait, if any.
    fn blocking_condition(&mut self, now: Duration, goal: Goal) -> Option<StepResult> {
        let target = self.target;
        if let Some(outcome) = self.backoff.blocks(now, &|| target.backing_room_bytes()) {
            return Some(outcome);
        }
        if self.target.limit_left() == Some(0) {
            return Some((Condition::LimitSpent, TICK));
        }
        if self.meter.is_day_spent(self.policy) {
            return Some((Condition::DailySpent, TICK));
        }
        if goal.is_urgent() {
            self.pressure_gate.forget();
        } else if let Some(wait) = self.pressure_gate.wait(now, self.policy.busy_percent.load(), self.load) {
            return Some((Condition::Busy, wait));
        }
        let wait = self.meter.wait(self.policy);
        (!wait.is_zero()).then_some((Condition::Writeback, wait))
    }

    /// Continues the sweep in progress or plans a new one. Returns an error with the condition if there is none to
    /// do.
    fn continue_or_plan(&mut self, now: Duration, goal: Goal) -> Result<SweepState, StepResult> {
        let for_old = matches!(goal, Goal::WriteOldPages { .. });
        if let Some(sweep_state) = self.sweep_state.filter(|c| c.for_old == for_old && now < c.expires) {
            return Ok(sweep_state);
        }
        let wait = self.scan_pacer.wait(now, goal.urgency());
        if !wait.is_zero() {
            let condition = if for_old { Condition::Idle } else { Condition::Writeback };
            return Err((condition, wait));
        }
        let throttle = self.policy.throttle();
        let ages = AgeHistogram::scan(self.target, &|| !throttle.is_stopping());
        let ended = self.target.now();
        self.scan_pacer.note(now, ended);
        let plan = match goal {
            Goal::FreeMemory { used_bytes, target_bytes, urgent, .. } => {
                ages.plan(used_bytes - target_bytes, urgent || self.idle_revolutions > 0)
            }
            Goal::WriteOldPages { age_ticks_min } => self.plan_for_old(ended, &ages, age_ticks_min),
        };
        let Some(plan) = plan else {
            if !for_old {
                self.note_idle_revolutions(ended, goal, 2);
            }
            return Err((Condition::Idle, TICK));
        };
        let (left, expires) = (self.target.page_count(), ended + PLAN_LIFETIME);
        Ok(SweepState { plan, for_old, left, expires, written_back_pages: 0 })
    }

    /// Plans to write back all pages that are old enough. If there is none, records when the oldest page will be.
    fn plan_for_old(&mut self, now: Duration, ages: &AgeHistogram, age_ticks_min: u16) -> Option<Plan> {
        let missing_ticks = u32::from(age_ticks_min.saturating_sub(ages.oldest_ticks()));
        if missing_ticks == 0 {
            return Some(Plan { older: None, age_ticks_min, accessed_too: false });
        }
        self.next_old_due = (age_ticks_min, now + (AGE_TICK * missing_ticks).max(IDLE_PAUSE));
        None
    }

    /// Records how many consecutive revolutions, ending now, wrote back nothing.
    fn note_idle_revolutions(&mut self, now: Duration, goal: Goal, idle_revolutions: u32) {
        (self.idle_revolutions, self.idle_since) = (idle_revolutions, now);
        self.no_progress_since = match goal.is_awaited() && idle_revolutions > 1 {
            true => self.no_progress_since.or(Some(now)),
            false => None,
        };
    }

    /// Moves the hand by one burst and accounts for its result.
    fn burst(&mut self, goal: Goal, sweep_state: SweepState) -> StepResult {
        self.policy.set_condition(Condition::Writeback);
        let began = self.target.now();
        let result = self.sweep(goal, &sweep_state, began);
        let now = self.target.now();
        let report = result.as_ref().map(|result| result.report.clone()).unwrap_or_default();
        let written_bytes = self.target.bytes_written();
        self.meter.note(now, self.policy, written_bytes, WrittenBy::Driver(report.written_bytes));
        if report.written_back_pages > 0 {
            self.policy.throttle().report_progress();
        }
        let written_back = report.written_back_pages > 0;
        let mostly_failed = report.failed_pages >= report.written_back_pages;
        let (seen, error) = match result {
            Ok(SweepResult { seen, report }) => (seen, report.error),
            Err(error) => (PageCount(0), Some(error)),
        };
        let blocking_condition =
            error.and_then(|error| self.note_error(now, error, written_back, mostly_failed));
        if !written_back {
            self.scan_pacer.add(began, now);
        } else if blocking_condition.is_none() {
            self.backoff.end();
        }
        self.advance(now, goal, sweep_state, seen, report.written_back_pages, blocking_condition.is_some());
        blocking_condition.unwrap_or_else(|| match goal {
            _ if seen.0 == 0 => (Condition::Writeback, TICK),
            Goal::FreeMemory { .. } => (Condition::Writeback, Duration::ZERO),
            Goal::WriteOldPages { .. } => (Condition::Writeback, now.saturating_sub(began)),
        })
    }

    fn sweep(
        &mut self,
        goal: Goal,
        sweep_state: &SweepState,
        began: Duration,
    ) -> Result<SweepResult, WritebackError> {
        let (target, throttle) = (self.target, self.policy.throttle());
        let allowance_bytes = self.meter.allowance_bytes(self.policy);
        let longest = if sweep_state.for_old { OLD_PAGES_BURST } else { TICK };
        let mut written_back_pages = 0;
        let mut on_progress = |progress: &Progress| {
            if progress.written_back_pages > written_back_pages {
                written_back_pages = progress.written_back_pages;
                throttle.report_progress();
            }
            let is_reached = match goal {
                Goal::FreeMemory { target_bytes, .. } => target.memory().used_bytes <= target_bytes,
                Goal::WriteOldPages { .. } => false,
            };
            let is_over = is_reached
                || progress.written_bytes >= allowance_bytes
                || target.now().saturating_sub(began) >= longest
                || throttle.is_stopping();
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let sweep = Sweep {
            from: self.hand,
            span: sweep_state.left,
            age_ticks_min: sweep_state.plan.older.unwrap_or(sweep_state.plan.age_ticks_min),
            urgent: sweep_state.plan.accessed_too || goal.is_urgent(),
        };
        target.write_back_aged(&sweep, &mut on_progress)
    }

    /// Handles the error of a sweep. Returns the condition that blocks writeback now, or `None` if it can continue.
    fn note_error(
        &mut self,
        now: Duration,
        error: WritebackError,
        written_back: bool,
        mostly_failed: bool,
    ) -> Option<StepResult> {
        match error {
            WritebackError::Stopped => return None,
            // Most pages were written: a bad spot of the medium, which the report counts.
            WritebackError::Io(_) if !mostly_failed => return None,
            WritebackError::Io(error) => self.backoff.failing(now, error, written_back),
            WritebackError::Full => self.backoff.full(now, self.target.backing_room_bytes(), written_back),
            WritebackError::Budget => return Some((Condition::LimitSpent, TICK)),
            WritebackError::NoBacking | WritebackError::Selection(_) => return Some((Condition::Off, TICK)),
        }
        let target = self.target;
        self.backoff.blocks(now, &|| target.backing_room_bytes())
    }

    /// Advances the hand, and ends or continues the sweep.
    fn advance(
        &mut self,
        now: Duration,
        goal: Goal,
        sweep_state: SweepState,
        seen: PageCount,
        written_back_pages: u64,
        failed: bool,
    ) {
        let page_count = self.target.page_count().0.max(1);
        self.hand = PageIndex((self.hand.0 + seen.0 % page_count) % page_count);
        let left = PageCount(sweep_state.left.0.saturating_sub(seen.0));
        let mut sweep_state = SweepState {
            left,
            written_back_pages: sweep_state.written_back_pages + written_back_pages,
            ..sweep_state
        };
        self.sweep_state = None;
        if written_back_pages > 0 {
            self.note_idle_revolutions(now, goal, 0);
        }
        if left.0 > 0 {
            self.sweep_state = Some(sweep_state);
        } else if sweep_state.plan.older.take().is_some() {
            self.sweep_state = Some(SweepState { left: self.target.page_count(), ..sweep_state });
        } else if sweep_state.for_old {
            // Pages whose accessed mark was cleared in this revolution are not written back within the same second.
            self.next_old_due = (sweep_state.plan.age_ticks_min, now + IDLE_PAUSE);
        } else if sweep_state.written_back_pages == 0 && !failed {
            self.note_idle_revolutions(now, goal, self.idle_revolutions.saturating_add(1));
        }
    }
}
