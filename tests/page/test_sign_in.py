"""Signing in with a real browser: by the password form, by links of other sites, below a path prefix."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.hand_written import hand_written
from tests.support.jupyter_proxy import PREFIX
from tests.support.page_client import PageClient, serving
from tests.support.recorded import fill_three_runs

PASSWORD = "sésame & <b>"
ELSEWHERE = "http://elsewhere.example/"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    """A server with a password."""
    root = tmp_path_factory.mktemp("locked")
    with hand_written(root) as database:
        fill_three_runs(database)
    with serving(root, password=PASSWORD) as client:
        yield client


def base_of(client: PageClient) -> str:
    return f"http://127.0.0.1:{client.server.port}/"


def sign_in_by_form(page: Page, base: str) -> None:
    page.goto(base)
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_text("The password is wrong.")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("grid").get_by_role("link").first).to_be_visible()
    assert page.url.startswith(base)


def test_the_password_form_opens_the_page(locked: PageClient, page: Page, errors: list[str]) -> None:
    sign_in_by_form(page, base_of(locked))
    assert all("401" in error for error in errors), "only the form and the wrong password"
    errors.clear()


@pytest.mark.full
def test_a_session_below_a_path_prefix_is_for_that_prefix_only(
    locked: PageClient, jupyter: str, page: Page, errors: list[str]
) -> None:
    path = f"{PREFIX}proxy/{locked.server.port}"
    sign_in_by_form(page, f"{jupyter}{path}/")
    [cookie] = [cookie for cookie in page.context.cookies() if cookie["name"].startswith("chiplog")]
    assert cookie["path"] == path
    errors.clear()


@pytest.mark.full
def test_links_of_another_site_open_the_page(locked: PageClient, page: Page) -> None:
    links = f'<a href="{locked.server.new_address()}">first</a> <a href="{base_of(locked)}#/sql">later</a>'
    page.route(ELSEWHERE, lambda route: route.fulfill(content_type="text/html", body=links))
    for name, shown in (("first", "Runs"), ("later", "SQL")):
        page.goto(ELSEWHERE)
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=shown)).to_be_visible()
