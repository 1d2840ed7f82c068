//! Drawing of `pd top`. Draws any state into any room, down to a single cell.

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table};
use ratatui::Frame;

use super::app::{App, Focus, TableState};
use super::columns::{bytes, count, fitting, gbit, Column, CONNECTIONS, CONTAINERS, SERVICES, TRAFFIC};
use crate::live::DriverView;

/// With fewer lines than this, only the table in focus is shown.
const LINES_FOR_BOTH: u16 = 14;

const HELP: [&str; 11] = [
    "q, Esc, Ctrl-C   end",
    "Tab              the next table: containers, connections, services, ports and pipes",
    "s, S             sort by the next, the previous column",
    "r                the other way round",
    "arrows, PgUp/Dn  scroll",
    "/                filter by any text; Enter keeps, Esc clears",
    "p, space         pause",
    "+, -             look less, more often",
    "h, ?             this help",
    "",
    "FULL/s: receive rings that were full with more to deliver",
];

/// Draws it.
pub fn draw(frame: &mut Frame, app: &App) {
    let [head, middle, foot] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, app);
    let both = frame.area().height >= LINES_FOR_BOTH;
    let containers = app.container_rows();
    if both {
        // Containers take the room that they need, up to half.
        let wanted = (containers.len() as u16).saturating_add(1).min(middle.height / 2);
        let [upper, lower] = Layout::vertical([Constraint::Length(wanted), Constraint::Min(0)]).areas(middle);
        draw_table(frame, upper, &CONTAINERS, &containers, app.containers, app.focus == Focus::Containers);
        draw_lower(frame, lower, app);
    } else if app.focus == Focus::Containers {
        draw_table(frame, middle, &CONTAINERS, &containers, app.containers, true);
    } else {
        draw_lower(frame, middle, app);
    }
    frame.render_widget(Line::from(footer(app)).style(Style::new().add_modifier(Modifier::DIM)), foot);
    if app.help {
        draw_help(frame);
    }
}

/// Connections, or the table in their place that is in focus.
fn draw_lower(frame: &mut Frame, area: Rect, app: &App) {
    match app.focus {
        Focus::Traffic => draw_table(frame, area, &TRAFFIC, &app.traffic_rows(), app.traffic, true),
        Focus::Services => draw_table(frame, area, &SERVICES, &app.service_rows(), app.services, true),
        Focus::Containers | Focus::Connections => {
            let focused = app.focus == Focus::Connections;
            draw_table(frame, area, &CONNECTIONS, &app.connection_rows(), app.connections, focused);
        }
    }
}

fn draw_head(frame: &mut Frame, area: Rect, app: &App) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let lines = match &app.view {
        Some(view) => head(&view.driver, app.restarts),
        None => vec!["looking for the driver".to_owned()],
    };
    let mut lines: Vec<Line> = lines.into_iter().map(Line::from).collect();
    if let Some(problem) = &app.problem {
        lines.insert(0, Line::from(problem.as_str()).style(bold));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Describes the driver in three lines, with the more important parts to the left.
pub fn head(driver: &DriverView, restarts: u32) -> Vec<String> {
    let rate = |name: &str| count(driver.per_second.get(name).copied().unwrap_or_default());
    let pid = driver.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let cpu = driver.cpu_percent.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.0}"));
    let restarted = if restarts > 0 { format!("  restarted {restarts} times") } else { String::new() };
    vec![
        format!(
            "{} Gbit/s  {} msg/s  CPU {cpu} %  driver {pid}, {} of {} mover(s), {:.1} busy{restarted}",
            gbit(driver.gbit_per_second),
            rate("messages_completed"),
            driver.movers_working,
            driver.movers,
            driver.movers_busy,
        ),
        format!(
            "{} clients  {} connections  memory {} of {}  {} rings waiting",
            driver.clients,
            driver.connections,
            bytes(driver.memory_used_bytes),
            bytes(driver.memory_budget_bytes),
            driver.rings_waiting,
        ),
        format!(
            "rings full {}/s  wake-ups {}/s  sleeps {}/s  refused {}/s  redone {}/s",
            rate("rings_full"),
            rate("wake_ups"),
            rate("mover_sleeps"),
            rate("requests_refused"),
            rate("commands_redone"),
        ),
    ]
}

fn draw_table<T>(
    frame: &mut Frame,
    area: Rect,
    columns: &[Column<T>],
    rows: &[&T],
    state: TableState,
    focused: bool,
) {
    let shown = fitting(columns, area.width);
    let title = |&at: &usize| {
        let arrow = if at != state.sort {
            ""
        } else if state.reverse {
            "^"
        } else {
            "v"
        };
        format!("{arrow}{}", columns[at].title)
    };
    let room = usize::from(area.height.saturating_sub(1));
    let first = state.offset.min(rows.len().saturating_sub(room));
    let cells = |row: &&T| Row::new(shown.iter().map(|&at| columns[at].text(row)).collect::<Vec<_>>());
    let style = Style::new().add_modifier(if focused { Modifier::REVERSED } else { Modifier::UNDERLINED });
    let table = Table::new(
        rows.iter().skip(first).take(room).map(cells).collect::<Vec<_>>(),
        shown.iter().map(|&at| Constraint::Length(columns[at].width)).collect::<Vec<_>>(),
    );
    frame.render_widget(
        table.header(Row::new(shown.iter().map(title).collect::<Vec<_>>()).style(style)),
        area,
    );
}

fn footer(app: &App) -> String {
    if app.typing {
        return format!("filter: {}_  (Enter keeps, Esc clears)", app.filter);
    }
    let mut parts = vec![format!("every {:.1} s", app.interval.as_secs_f64())];
    if app.paused {
        parts.insert(0, "PAUSED".to_owned());
    }
    if !app.filter.is_empty() {
        parts.push(format!("filter '{}'", app.filter));
    }
    parts.push("q end  h help  s sort  / filter  p pause  Tab table".to_owned());
    parts.join("  ")
}

fn draw_help(frame: &mut Frame) {
    let area = frame.area();
    let (width, height) = (64.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let lines: Vec<Line> = HELP.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("pd top")), place);
}

#[cfg(test)]
mod tests {
    use super::super::app::app_for_tests as app;
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    fn screen(app: &App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_large_terminal_shows_everything() {
        let lines = screen(&app(), 140, 30);
        let text = lines.join("\n");
        for part in [
            "24.00 Gbit/s",
            "6.00M msg/s",
            "CPU 25 %",
            "driver 4242, 0 of 1 mover(s), 0.0 busy",
            "3 clients  2 connections",
            "memory 12.0M of 1.00G",
            "vOUT Gbit/s",
            "CONTAINER",
            "TENANT",
            "pid 1002",
            "10.88.0.2:40000 a",
            "10.88.0.2:7000 b",
            "offloaded",
            "every 1.0 s",
            "q end",
        ] {
            assert!(text.contains(part), "'{part}' is missing in:\n{text}");
        }
    }

    #[test]
    fn a_small_terminal_shows_the_table_in_focus() {
        let mut app = app();
        let text = screen(&app, 40, 8).join("\n");
        assert!(text.contains("CONTAINER") && text.contains("Gbit/s") && !text.contains("FROM"), "{text}");
        app.focus = Focus::Connections;
        let text = screen(&app, 40, 8).join("\n");
        assert!(text.contains("FROM") && !text.contains("CONTAINER"), "{text}");
    }

    #[test]
    fn ports_and_tenants_take_the_place_of_connections() {
        let mut app = app();
        app.focus = Focus::Traffic;
        for (width, height) in [(140, 30), (60, 8)] {
            let text = screen(&app, width, height).join("\n");
            for part in ["PORT OR TENANT", "vIN pps", "wan", "red", "2.00M"] {
                assert!(text.contains(part), "'{part}' is missing in:\n{text}");
            }
            assert!(!text.contains("FROM"), "{text}");
        }
    }

    #[test]
    fn services_take_the_place_of_connections() {
        let mut app = app();
        app.focus = Focus::Services;
        for (width, height) in [(140, 30), (60, 8)] {
            let text = screen(&app, width, height).join("\n");
            for part in ["SERVICE", "vNEW/s", "10.96.0.1:80", "1/2", "1.00M"] {
                assert!(text.contains(part), "'{part}' is missing in:\n{text}");
            }
            assert!(!text.contains("FROM"), "{text}");
        }
        assert!(screen(&app, 140, 30).join("\n").contains("maglev"));
    }

    #[test]
    fn any_state_fits_any_terminal() {
        for prepare in [
            |_: &mut App| {},
            |app: &mut App| app.help = true,
            |app: &mut App| (app.typing, app.filter) = (true, "pid".into()),
            |app: &mut App| app.connections.offset = usize::MAX,
            |app: &mut App| app.focus = Focus::Traffic,
            |app: &mut App| app.focus = Focus::Services,
            |app: &mut App| app.view = None,
            |app: &mut App| app.problem = Some("no driver answers".into()),
        ] {
            let mut app = app();
            prepare(&mut app);
            for (width, height) in [(1, 1), (2, 3), (10, 4), (20, 5), (40, 8), (80, 24), (300, 90)] {
                screen(&app, width, height);
            }
        }
    }

    #[test]
    fn names_write_nothing_but_letters() {
        let mut app = app();
        let mut view = crate::live::view_for_tests();
        view.containers[0].name = crate::foreign::tests::HOSTILE.to_owned();
        view.connections[0].from_container = crate::foreign::tests::HOSTILE.to_owned();
        app.take(Ok(view));
        let text = screen(&app, 140, 30).join("");
        assert!(text.contains("[2J 31m") && !text.chars().any(char::is_control), "{text:?}");
        assert!(!text.contains('\u{202e}'), "{text:?}");
    }

    #[test]
    fn a_problem_is_said_first_and_the_help_covers_the_rest() {
        let mut app = app();
        app.take(Err("no driver answers at /x".into()));
        assert_eq!(screen(&app, 80, 24)[0], "no driver answers at /x");
        app.help = true;
        assert!(screen(&app, 80, 24).join("\n").contains("the other way round"));
    }
}
