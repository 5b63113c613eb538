//! Store, load, ratio and memory of one page set: pagefold against the kernel's zram.

use super::engine::Engine;
use super::pages::PageSet;
use super::plan::{self, LARGE_LEN, Plan, SHIFT_PAGES};
use super::report::{Report, Row, SetReport, SubjectReport};
use super::stats::Rounds;
use super::subject::{self, Subject};
use super::zram::Zram;
use pagefold_page::{AlignedBytes, PAGE_SIZE};

/// Wall time / CPU time above which the report notes that the machine was busy.
const BUSY: f64 = 1.05;

/// Measures one set and adds its report and rows. Without zram, adds a note and measures pagefold alone.
pub fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let len_bytes = set.bytes().len() as u64;
    let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(Engine::new(len_bytes)?)];
    match Zram::open(len_bytes) {
        Ok(zram) => subjects.push(Box::new(zram)),
        Err(e) => report.note(format!("not compared with the kernel: {e:#}")),
    }
    let mut figures: Vec<_> = subjects.iter().map(|s| SubjectReport::new(s.name())).collect();
    let mut bufs = [AlignedBytes::new(PAGE_SIZE, 0), AlignedBytes::new(LARGE_LEN, 0)];
    let mut shift = 0;
    let mut stretch = Rounds::default();
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let counts = round >= plan.warm_up_rounds;
        // The first subject alternates, so that neither always finds the caches as the other left them.
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        order.rotate_left(round % subjects.len());
        for (size, buf) in bufs.iter_mut().enumerate() {
            shift = (shift + SHIFT_PAGES) % set.len();
            for &i in &order {
                let store = subject::store_all(&mut *subjects[i], set, buf.len(), shift)?;
                if counts {
                    figures[i].store[size].push(store.cpu_ns);
                    stretch.push(store.wall_ns / store.cpu_ns);
                }
            }
            for &i in &order {
                let load = subject::load_all(&mut *subjects[i], set, buf)?;
                if counts {
                    figures[i].load[size].push(load.cpu_ns);
                    stretch.push(load.wall_ns / load.cpu_ns);
                }
            }
        }
    }
    for (subject, figure) in subjects.iter_mut().zip(&mut figures) {
        subject::verify(&mut **subject, set, shift, &mut bufs[1])?;
        figure.memory = subject.memory()?;
    }
    if stretch.median() > BUSY {
        report.note(format!("the machine was busy: {:.1} times the CPU time passed", stretch.median()));
    }
    report.rows.extend(rows(set, &figures));
    let same_filled = 1.0 - set.not_same_filled().len() as f64 / set.len() as f64;
    let (name, pages, comparable) = (set.name.clone(), set.len(), set.comparable);
    report.sets.push(SetReport { name, pages, comparable, same_filled, subjects: figures });
    Ok(())
}

fn rows(set: &PageSet, figures: &[SubjectReport]) -> Vec<Row> {
    let ours = &figures[0];
    let peer = figures.get(1);
    let time = |what, target, pick: &dyn Fn(&SubjectReport) -> Rounds| {
        let (mine, theirs) = (pick(ours), peer.map(pick));
        let ratio = theirs.as_ref().map(|theirs| mine.over(theirs).median());
        let peer = theirs.map(|t| t.median());
        Row { ours: mine.median(), peer, ratio, ..Row::new(what, set, "ns", "kernel zram", target) }
    };
    let ratio = Row {
        ours: ours.memory.ratio(),
        peer: peer.map(|p| p.memory.ratio()),
        ratio: peer.map(|p| ours.memory.ratio() / p.memory.ratio()),
        ..Row::new("ratio, original / memory used", set, "x", "kernel zram", plan::RATIO)
    };
    vec![
        time("store one page", plan::STORE, &|f| f.store[0].clone()),
        time("load one page", plan::LOAD, &|f| f.load[0].clone()),
        ratio,
    ]
}
